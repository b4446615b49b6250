//! Two guests of one run: transfers from the GPU memory of one to that of the other, and a guest
//! that dies.

use peerbar_lab::LabError;
use peerbar_lab::exit::RunOutcome;
use peerbar_lab::iommu::Iommu;
use peerbar_lab::scenario::{GpuBuilder, GuestGroup, NicBuilder, ScenarioBuilder};
use peerbar_lab::{Check, Completer, Rdma, RdmaMemory, Verdict};
use rustix::process::{Pid, Signal, kill_process};

use crate::options;

fn group() -> GuestGroup {
    let device = |number: u8| {
        let switch = format!("switch{number}");
        let gpu = GpuBuilder::new(&format!("gpu{number}"), "16M").below(&switch);
        let nic = NicBuilder::new(&format!("nic{number}")).below(&switch);
        (switch, gpu, nic)
    };
    let (switch0, gpu0, nic0) = device(0);
    let (switch1, gpu1, nic1) = device(1);
    ScenarioBuilder::new("lab-guests")
        .key("timeout", "4m")
        .tools()
        .iommu(Iommu::Intel)
        .impair("nic0<->nic1 loss=0.1%")
        .guest("left")
        .switch(&switch0)
        .gpu(gpu0)
        .nic(nic0)
        .guest("right")
        .switch(&switch1)
        .gpu(gpu1)
        .nic(nic1)
        .build_group()
        .unwrap()
        .unwrap()
}

#[test]
#[ignore = "boots two guests; scripts/test runs it"]
fn vram_goes_to_the_other_guest_until_that_dies() {
    let mut guests = options().start_group(group(), &mut |_| {}).unwrap();
    assert!(guests.failure().is_none(), "{:?}", guests.failure());
    let check = Check::Rdma(Rdma {
        nic: "nic0".to_owned(),
        peer: "nic1".to_owned(),
        from: RdmaMemory::Vram("gpu0".to_owned()),
        to: RdmaMemory::Vram("gpu1".to_owned()),
        sizes: vec![1, 4096, 1 << 20],
        seconds: None,
    });
    let row = guests.check("VRAM to VRAM", &check).unwrap();
    assert_eq!(row.verdict, Verdict::Pass, "{:?}", row.diagnostics);
    // Three ways for each size, and two sends of each size that fits in a message.
    assert_eq!(row.subtests.len(), 13);
    let mut flows = row.measure.flows.iter();
    assert!(flows.all(|flow| flow.completer == Completer::PeerBar));
    assert_eq!(
        (row.measure.ram_bytes, row.measure.peer_bytes),
        (0, 2 * row.measure.bytes)
    );

    let right = guests.guest("right").unwrap().qemu();
    let right = Pid::from_raw(i32::try_from(right).unwrap()).unwrap();
    kill_process(right, Signal::KILL).unwrap();
    let row = guests.check("VRAM to a dead guest", &check).unwrap();
    assert_eq!(row.verdict, Verdict::Fail);
    let Some(LabError::OfGuest { guest, .. }) = guests.failure() else {
        panic!("{:?}", guests.failure());
    };
    assert_eq!(guest, "right");
    let left = guests.guest("left").unwrap().command("true").unwrap();
    assert_eq!(left.status, 0, "{left:?}");

    let ended = guests.conclude(|_, _| Ok(None)).unwrap();
    ended.seal().unwrap();
    assert_eq!(
        ended.verdict.outcome,
        RunOutcome::GuestDied,
        "{}",
        ended.verdict
    );
    let reason = &ended.verdict.reason;
    assert!(
        reason.starts_with("right: the guest ended early"),
        "{reason}"
    );
}
