//! A client that sends any bytes at all to a controller's session: the server must end the session or go on, and must not
//! panic, hang or leak a descriptor.
#![no_main]

use std::io::{Read, Write};
use std::net::Shutdown;
use std::os::unix::net::UnixStream;
use std::sync::{Mutex, OnceLock};

use libfuzzer_sys::fuzz_target;
use peerbar_endpoint::Running;
use peerbar_nvme::{Config, Controller, PollPolicy, Source};
use peerbar_vfio_user::{Options, Stop, serve};

/// VERSION 0.0 with id 1 and no capabilities, so that the server reads on.
const HELLO: [u8; 22] = [
    1, 0, 1, 0, 22, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, b'{', b'}',
];

fn controller() -> &'static Mutex<Running<Controller>> {
    static CONTROLLER: OnceLock<Mutex<Running<Controller>>> = OnceLock::new();
    CONTROLLER.get_or_init(|| {
        let config = Config {
            serial: "fuzz".to_owned(),
            cmb_bytes: Some(2 << 20),
            cmb_queues: true,
            block_bytes: 512,
            mdts: 5,
            namespaces: vec![Source::Ram(1 << 20)],
            workers: 1,
            poll: PollPolicy::Adaptive,
            io_uring: true,
            seeded_faults: Vec::new(),
        };
        Mutex::new(Controller::start(&config).expect("a controller"))
    })
}

fn descriptors() -> usize {
    std::fs::read_dir("/proc/self/fd").expect("/proc").count()
}

fuzz_target!(|data: &[u8]| {
    let mut controller = controller().lock().expect("no earlier panic");
    let endpoint = &mut controller.endpoint;
    let before = descriptors();
    let (mut client, server) = UnixStream::pair().expect("sockets");
    let options = Options::new(Stop::new().expect("an eventfd"));
    std::thread::scope(|scope| {
        scope.spawn(|| {
            // The session ends by itself, well or badly.
            let _ = serve(server, endpoint, &options);
        });
        let mut replies = client.try_clone().expect("a descriptor");
        scope.spawn(move || {
            let mut sink = Vec::new();
            let _ = replies.read_to_end(&mut sink);
        });
        let _ = client
            .write_all(&HELLO)
            .and_then(|()| client.write_all(data));
        let _ = client.shutdown(Shutdown::Write);
    });
    drop((client, options));
    assert!(descriptors() <= before, "a descriptor has leaked");
});
