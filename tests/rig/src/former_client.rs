//! Checks that a client that has left keeps nothing of the device's memory.

use std::fs::File;
use std::os::unix::fs::FileExt;

use vfio_user::Client;

use crate::Daemon;

/// Lets a client map a region, write to it and leave, and connects another one. Checks that the
/// second client finds zeros at `offset`, and that each sees only its own writes there. Returns the
/// second client, which has written four bytes of 9.
///
/// # Panics
/// If a check fails.
pub fn check_former_client(daemon: &Daemon, region: u32, offset: u64) -> Client {
    let mapped = |client: &Client| -> File {
        let mapped = client.region(region).unwrap().file_offset.as_ref();
        mapped.unwrap().file().try_clone().unwrap()
    };
    let seen = |file: &File| {
        let mut seen = [0xff; 4];
        file.read_exact_at(&mut seen, offset).unwrap();
        seen
    };
    let client = daemon.connect(Client::new);
    let former = mapped(&client);
    former.write_all_at(&[7; 4], offset).unwrap();
    drop(client);

    let client = daemon.connect(Client::new);
    let own = mapped(&client);
    assert_eq!(seen(&own), [0; 4]);
    former.write_all_at(&[1; 4], offset).unwrap();
    own.write_all_at(&[9; 4], offset).unwrap();
    assert_eq!((seen(&own), seen(&former)), ([9; 4], [1; 4]));
    client
}
