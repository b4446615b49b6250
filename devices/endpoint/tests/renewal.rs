//! A client that has left, and the memory of the next one.

// Clippy recognises tests only by their attribute, not the functions that they call.
#![allow(clippy::unwrap_used)]

use std::io::{self, ErrorKind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use peerbar_dma::Requester;
use peerbar_endpoint::{BarMemory, Endpoint, Vectors};
use peerbar_pci::{Bar, ConfigSpace, Function};
use peerbar_vfio_user::{Listener, Options, Stop};
use vfio_user::Client;

/// A function whose engine never finishes its step while this is set.
#[derive(Default)]
struct StuckFunction(AtomicBool);

impl Function for StuckFunction {
    fn bar_read(&self, _bar: u8, _offset: u64, data: &mut [u8]) {
        data.fill(0);
    }

    fn bar_write(&self, _bar: u8, _offset: u64, _data: &[u8]) {}

    fn reset(&self) {}

    fn renew_memory(&self) -> io::Result<()> {
        match self.0.load(Ordering::SeqCst) {
            true => Err(ErrorKind::TimedOut.into()),
            false => Ok(()),
        }
    }
}

#[test]
fn no_client_is_served_while_a_former_one_may_map_its_memory() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("socket");
    let function = Arc::new(StuckFunction::default());
    let config = ConfigSpace::of_test_function(&[Bar::new(0, 0x4000, false).unwrap()]);
    let vectors = Arc::new(Vectors::new(1).unwrap());
    let memory = [BarMemory::Registers];
    let mut endpoint = Endpoint::new(
        function.clone(),
        config,
        memory,
        Arc::new(Requester::new()),
        vectors,
    );
    let listener = Listener::bind(&path).unwrap();
    let stop = Stop::new().unwrap();
    let options = Options::new(stop.clone());
    std::thread::scope(|scope| {
        let served = scope.spawn(|| listener.run(&mut endpoint, &options));
        let is_served = || Client::new(&path).is_ok();
        let first = [is_served(), is_served()];
        function.0.store(true, Ordering::SeqCst);
        // The memory was renewed after the last client, unless that client is still leaving.
        let stuck = [is_served(), is_served(), is_served()];
        function.0.store(false, Ordering::SeqCst);
        // The first client may be the one whose departure brings the renewal.
        let last = [is_served(), is_served(), is_served()];
        stop.trigger();
        served.join().unwrap().unwrap();
        assert_eq!(first, [true; 2]);
        assert_eq!(stuck[1..], [false; 2]);
        assert_eq!(last[1..], [true; 2]);
    });
}
