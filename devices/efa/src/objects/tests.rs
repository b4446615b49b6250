//! Objects that a driver creates, changes and removes.

use std::sync::Arc;

use proptest::prelude::*;

use super::*;
use crate::attributes;
use crate::work::request::Buffer;

pub(crate) fn objects() -> Objects {
    let bar = MemoryFile::create("bar", memory_bar::BAR_BYTES).unwrap();
    Objects::new(Arc::new(Doorbells::new().unwrap()), Arc::new(bar))
}

/// Parameters of a completion queue without an event queue.
fn completion_queue(uar: u16) -> CreateCompletionQueue {
    CreateCompletionQueue {
        uar,
        entries: 64,
        entry_bytes: 32,
        address: 0x1_0000,
        event_queue: None,
        with_source_address: false,
    }
}

/// Returns a UAR, a protection domain and a completion queue, and the parameters of a queue pair
/// with them.
fn parents(objects: &mut Objects) -> CreateQueuePair {
    let uar = objects.create_uar().unwrap();
    let protection_domain = objects.create_protection_domain().unwrap();
    let queue = completion_queue(uar);
    let queue = objects.create_completion_queue(queue).unwrap();
    CreateQueuePair {
        kind: QueuePairKind::ReliableDatagram,
        protection_domain,
        uar,
        send_completions: queue.into(),
        receive_completions: queue.into(),
        send_entries: 16,
        send_bytes: 16 * 64,
        receive_address: 0x2_0000,
        receive_bytes: 32 * 16,
        unsolicited_writes: false,
    }
}

fn state(state: QueuePairState) -> ModifyQueuePair {
    ModifyQueuePair {
        state: Some(state),
        ..ModifyQueuePair::default()
    }
}

fn in_use(kind: ObjectKind, number: u16) -> Result<(), ObjectError> {
    Err(ObjectError::InUse {
        kind,
        number: number.into(),
    })
}

#[test]
fn object_in_use_is_not_removed() {
    let mut objects = objects();
    let parameters = parents(&mut objects);
    let (uar, domain) = (parameters.uar, parameters.protection_domain);
    let queue = u16::try_from(parameters.send_completions).unwrap();
    let pair = objects.create_queue_pair(parameters).unwrap();
    let handle = CreateAddressHandle {
        protection_domain: domain,
        gid: Gid([1; 16]),
    };
    let handle = objects.create_address_handle(handle).unwrap();
    assert_eq!(objects.destroy_uar(uar), in_use(ObjectKind::Uar, uar));
    let domain_in_use = in_use(ObjectKind::ProtectionDomain, domain);
    let queue_in_use = in_use(ObjectKind::CompletionQueue, queue);
    assert_eq!(objects.destroy_completion_queue(queue), queue_in_use);
    objects.destroy_queue_pair(pair).unwrap();
    assert_eq!(objects.destroy_uar(uar), in_use(ObjectKind::Uar, uar));
    objects.destroy_completion_queue(queue).unwrap();
    objects.destroy_uar(uar).unwrap();
    assert_eq!(objects.destroy_protection_domain(domain), domain_in_use);
    assert!(objects.destroy_address_handle(handle, domain + 1).is_err());
    objects.destroy_address_handle(handle, domain).unwrap();
    objects.destroy_protection_domain(domain).unwrap();
    assert!(objects.destroy_protection_domain(domain).is_err());
}

#[test]
fn event_queue_of_a_completion_queue_is_not_removed() {
    let mut objects = objects();
    let uar = objects.create_uar().unwrap();
    let create = |entries, address| CreateEventQueue {
        entries,
        address,
        vector: 1,
    };
    for (entries, address) in [
        (0, 0),
        (1, 0),
        (3, 0),
        (8192, 0),
        (16, 8),
        (16, u64::MAX - 15),
    ] {
        let refused = objects.create_event_queue(create(entries, address));
        assert!(
            matches!(refused, Err(ObjectError::Invalid { .. })),
            "{entries} {address:#x}"
        );
    }
    let events = objects.create_event_queue(create(16, 0)).unwrap();
    let queue = CreateCompletionQueue {
        event_queue: Some(events),
        ..completion_queue(uar)
    };
    let queue = objects.create_completion_queue(queue).unwrap();
    let refused = in_use(ObjectKind::EventQueue, events);
    assert_eq!(objects.destroy_event_queue(events), refused);
    objects.destroy_completion_queue(queue).unwrap();
    objects.destroy_event_queue(events).unwrap();
}

#[test]
fn impossible_completion_queues_are_refused() {
    let mut objects = objects();
    let uar = objects.create_uar().unwrap();
    let possible = completion_queue(uar);
    let impossible = [
        CreateCompletionQueue {
            entries: 0,
            ..possible
        },
        CreateCompletionQueue {
            entries: 48,
            ..possible
        },
        CreateCompletionQueue {
            entry_bytes: 64,
            ..possible
        },
        CreateCompletionQueue {
            entry_bytes: 0,
            ..possible
        },
        CreateCompletionQueue {
            address: 0x1_0010,
            ..possible
        },
        CreateCompletionQueue {
            address: u64::MAX - 31,
            ..possible
        },
        CreateCompletionQueue {
            entry_bytes: 16,
            with_source_address: true,
            ..possible
        },
    ];
    for parameters in impossible {
        let refused = objects.create_completion_queue(parameters);
        assert!(
            matches!(refused, Err(ObjectError::Invalid { .. })),
            "{parameters:?}"
        );
    }
    for parameters in [
        CreateCompletionQueue {
            uar: uar + 1,
            ..possible
        },
        CreateCompletionQueue {
            event_queue: Some(0),
            ..possible
        },
    ] {
        let refused = objects.create_completion_queue(parameters);
        assert!(
            matches!(refused, Err(ObjectError::Unknown { .. })),
            "{parameters:?}"
        );
    }
    objects.destroy_uar(uar).unwrap();
}

#[test]
fn impossible_queue_pairs_are_refused_and_take_nothing() {
    let mut objects = objects();
    let possible = parents(&mut objects);
    let impossible = [
        CreateQueuePair {
            send_bytes: 16 * 32,
            ..possible
        },
        CreateQueuePair {
            send_bytes: 16 * 64 + 1,
            ..possible
        },
        CreateQueuePair {
            send_entries: 0,
            ..possible
        },
        CreateQueuePair {
            send_entries: 12,
            send_bytes: 12 * 64,
            ..possible
        },
        CreateQueuePair {
            send_entries: 4096,
            send_bytes: 4096 * 64,
            ..possible
        },
        CreateQueuePair {
            send_entries: u32::MAX,
            send_bytes: u32::MAX,
            ..possible
        },
        CreateQueuePair {
            receive_bytes: 24,
            ..possible
        },
        CreateQueuePair {
            receive_bytes: 48,
            ..possible
        },
        CreateQueuePair {
            receive_bytes: 1 << 20,
            ..possible
        },
        CreateQueuePair {
            receive_address: 8,
            ..possible
        },
        CreateQueuePair {
            receive_address: u64::MAX - 15,
            ..possible
        },
    ];
    for parameters in impossible {
        let refused = objects.create_queue_pair(parameters);
        assert!(
            matches!(refused, Err(ObjectError::Invalid { .. })),
            "{parameters:?}"
        );
    }
    for parameters in [
        CreateQueuePair {
            protection_domain: 9,
            ..possible
        },
        CreateQueuePair { uar: 9, ..possible },
        CreateQueuePair {
            send_completions: 0x1_0000,
            ..possible
        },
        CreateQueuePair {
            receive_completions: 9,
            ..possible
        },
    ] {
        let refused = objects.create_queue_pair(parameters);
        assert!(
            matches!(refused, Err(ObjectError::Unknown { .. })),
            "{parameters:?}"
        );
    }
    let domain = possible.protection_domain;
    objects.destroy_protection_domain(domain).unwrap();
}

#[test]
fn queue_pair_without_queues_is_possible() {
    let mut objects = objects();
    let parameters = parents(&mut objects);
    let pair = objects.create_queue_pair(CreateQueuePair {
        send_entries: 0,
        send_bytes: 0,
        receive_bytes: 0,
        ..parameters
    });
    let pair = objects.queue_pairs.get(pair.unwrap()).unwrap();
    assert_eq!(
        (pair.send.peek(0), pair.receive.peek(0)),
        (Ok(None), Ok(None))
    );
}

#[test]
fn number_of_a_queue_pair_is_not_that_of_the_one_before() {
    let mut objects = objects();
    let parameters = parents(&mut objects);
    let mut numbers = Vec::new();
    for _ in 0..3 * limits::QUEUE_PAIRS {
        let number = objects.create_queue_pair(parameters).unwrap();
        objects.destroy_queue_pair(number).unwrap();
        assert!(objects.query_queue_pair(number).is_err());
        numbers.push(number);
    }
    numbers.sort_unstable();
    let all = numbers.len();
    numbers.dedup();
    assert_eq!(numbers.len(), all);
    assert!(!numbers.contains(&0));
}

#[test]
fn send_queue_of_a_live_process_is_no_other_processs() {
    let mut objects = objects();
    let first = parents(&mut objects);
    let other = parents(&mut objects);
    let slot = |number: u16| number % limits::QUEUE_PAIRS;
    let mapped = objects.create_queue_pair(first).unwrap();
    objects.destroy_queue_pair(mapped).unwrap();
    // The driver leaves the mapping to the first process until it ends.
    let of_other: Vec<u16> = (1..limits::QUEUE_PAIRS)
        .map(|_| objects.create_queue_pair(other).unwrap())
        .collect();
    assert!(of_other.iter().all(|it| slot(*it) != slot(mapped)));
    let exhausted = ObjectError::Exhausted {
        kind: ObjectKind::QueuePair,
        limit: limits::QUEUE_PAIRS.into(),
    };
    assert_eq!(objects.create_queue_pair(other), Err(exhausted));
    let again = objects.create_queue_pair(first).unwrap();
    assert_eq!(slot(again), slot(mapped), "the first process gets it again");
    objects.destroy_queue_pair(again).unwrap();
    let queue = u16::try_from(first.send_completions).unwrap();
    objects.destroy_completion_queue(queue).unwrap();
    objects.destroy_uar(first.uar).unwrap();
    let last = objects.create_queue_pair(other).unwrap();
    assert_eq!(slot(last), slot(mapped), "its process has ended");
}

#[test]
fn process_that_makes_pairs_again_and_again_leaves_slots() {
    let mut objects = objects();
    let (one, other) = (parents(&mut objects), parents(&mut objects));
    for _ in 0..2 * limits::QUEUE_PAIRS {
        let number = objects.create_queue_pair(one).unwrap();
        objects.destroy_queue_pair(number).unwrap();
    }
    let left = limits::QUEUE_PAIRS - 4;
    assert!((0..left).all(|_| objects.create_queue_pair(other).is_ok()));
    assert!(objects.create_queue_pair(other).is_err());
}

#[test]
fn objects_are_made_up_to_the_limits_that_are_shown() {
    let mut objects = objects();
    let pair = parents(&mut objects);
    let (queues, events) = (attributes::queues_1(), attributes::event_queues());
    let mut made = |make: &mut dyn FnMut(&mut Objects) -> Result<u16, ObjectError>| {
        let mut count = 0u32;
        let error = loop {
            match make(&mut objects) {
                Ok(_) => count += 1,
                Err(error) => break error,
            }
        };
        assert!(matches!(error, ObjectError::Exhausted { .. }), "{error}");
        count
    };
    let count = made(&mut |it| it.create_completion_queue(completion_queue(pair.uar)));
    assert_eq!(count + 1, queues.max_cq.get());
    assert_eq!(
        made(&mut |it| it.create_queue_pair(pair)),
        queues.max_qp.get()
    );
    let (mut last, protection_domain) = (0u16, pair.protection_domain);
    let count = made(&mut |it| {
        let mut gid = Gid([1; 16]);
        last += 1;
        gid.0[..2].copy_from_slice(&last.to_le_bytes());
        it.create_address_handle(CreateAddressHandle {
            protection_domain,
            gid,
        })
    });
    assert_eq!(count, queues.max_ah.get());
    let event_queue = CreateEventQueue {
        entries: 16,
        address: 0x1000,
        vector: 1,
    };
    let count = made(&mut |it| it.create_event_queue(event_queue));
    assert_eq!(count, events.max_eq.get());
}

#[test]
fn queues_are_as_deep_as_the_limits_that_are_shown() {
    let mut objects = objects();
    let pair = parents(&mut objects);
    let (queues, events) = (attributes::queues_1(), attributes::event_queues());
    let is_possible = |entries: u32, create: &mut dyn FnMut(u16) -> bool| {
        u16::try_from(entries).is_ok_and(create)
    };
    let mut create = |entries| {
        let queue = completion_queue(pair.uar);
        let queue = CreateCompletionQueue { entries, ..queue };
        objects.create_completion_queue(queue).is_ok()
    };
    let depth = queues.max_cq_depth.get();
    assert!(is_possible(depth, &mut create) && !is_possible(2 * depth, &mut create));
    let mut create = |entries| {
        let queue = CreateEventQueue {
            entries,
            address: 0x1000,
            vector: 1,
        };
        objects.create_event_queue(queue).is_ok()
    };
    let depth = events.max_eq_depth.get();
    assert!(is_possible(depth, &mut create) && !is_possible(2 * depth, &mut create));
    let mut create = |send_entries, descriptors| {
        let pair = CreateQueuePair {
            send_entries,
            send_bytes: send_entries * 64,
            receive_bytes: descriptors * 16,
            ..pair
        };
        objects.create_queue_pair(pair).is_ok()
    };
    let (send, receive) = (queues.max_sq_depth.get(), queues.max_rq_depth.get());
    assert!(create(send, receive));
    assert!(!create(2 * send, receive) && !create(send, 2 * receive));
}

#[test]
fn states_follow_the_drivers_table() {
    use QueuePairState as S;
    let reach = |to: S| -> Vec<S> {
        match to {
            S::Reset => vec![],
            S::Init => vec![S::Init],
            S::ReadyToReceive => vec![S::Init, S::ReadyToReceive],
            S::ReadyToSend => vec![S::Init, S::ReadyToReceive, S::ReadyToSend],
            S::SendQueueDrained => {
                vec![
                    S::Init,
                    S::ReadyToReceive,
                    S::ReadyToSend,
                    S::SendQueueDrained,
                ]
            }
            S::Error | S::SendQueueError => vec![S::Init, S::Error],
        }
    };
    let allowed: [(S, &[S]); 6] = [
        (S::Reset, &[S::Reset, S::Init]),
        (S::Init, &[S::Reset, S::Init, S::ReadyToReceive, S::Error]),
        (S::ReadyToReceive, &[S::Reset, S::ReadyToSend, S::Error]),
        (
            S::ReadyToSend,
            &[S::Reset, S::ReadyToSend, S::SendQueueDrained, S::Error],
        ),
        (
            S::SendQueueDrained,
            &[S::Reset, S::ReadyToSend, S::SendQueueDrained, S::Error],
        ),
        (S::Error, &[S::Reset, S::Error]),
    ];
    for (from, allowed) in allowed {
        for number in 0..7 {
            let to = S::from_number(number).unwrap();
            let mut objects = objects();
            let parameters = parents(&mut objects);
            let pair = objects.create_queue_pair(parameters).unwrap();
            for step in reach(from) {
                objects.modify_queue_pair(pair, state(step)).unwrap();
            }
            let changed = objects.modify_queue_pair(pair, state(to));
            assert_eq!(changed.is_ok(), allowed.contains(&to), "{from:?} to {to:?}");
            let now = objects.query_queue_pair(pair).unwrap().state;
            assert_eq!(now, if changed.is_ok() { to } else { from });
        }
    }
    assert_eq!(S::from_number(7), None);
}

#[test]
fn refused_change_of_a_queue_pair_changes_nothing() {
    let mut objects = objects();
    let parameters = parents(&mut objects);
    let pair = objects.create_queue_pair(parameters).unwrap();
    let all = ModifyQueuePair {
        state: Some(QueuePairState::Init),
        qkey: Some(7),
        sq_psn: Some(8),
        rnr_retry: Some(7),
    };
    let before = objects.query_queue_pair(pair).unwrap();
    for refused in [
        ModifyQueuePair {
            rnr_retry: Some(8),
            ..all
        },
        ModifyQueuePair {
            state: Some(QueuePairState::ReadyToSend),
            ..all
        },
    ] {
        assert!(objects.modify_queue_pair(pair, refused).is_err());
        assert_eq!(objects.query_queue_pair(pair), Ok(before));
    }
    objects.modify_queue_pair(pair, all).unwrap();
    let now = objects.query_queue_pair(pair).unwrap();
    assert_eq!((now.state, now.qkey), (QueuePairState::Init, 7));
    assert_eq!((now.sq_psn, now.rnr_retry, now.is_draining), (8, 7, false));
}

#[test]
fn reset_removes_all_objects() {
    let mut objects = objects();
    let parameters = parents(&mut objects);
    let pair = objects.create_queue_pair(parameters).unwrap();
    let keys = objects.register_region(RegisterRegion {
        protection_domain: parameters.protection_domain,
        address: 0,
        length: 4096,
        page_shift: 12,
        pages: &[0],
        access: VerbsAccess::default(),
    });
    objects.reset();
    assert!(objects.query_queue_pair(pair).is_err());
    assert!(objects.deregister_region(keys.unwrap().local).is_err());
    let parameters = parents(&mut objects);
    let next = objects.create_queue_pair(parameters).unwrap();
    assert_ne!(next, pair, "the number is not used again at once");
}

/// A region at any address, over pages in any order.
#[derive(Clone, Debug)]
struct Region {
    address: u64,
    length: u64,
    page_shift: u8,
    pages: Vec<u64>,
}

fn region() -> impl Strategy<Value = Region> {
    let pages = proptest::collection::vec(0u64..6, 1..12);
    (pages, 12u8..15, any::<u64>(), any::<u64>()).prop_map(|(pages, page_shift, at, length)| {
        let page = 1u64 << page_shift;
        let in_page = at % page;
        let room = pages.len() as u64 * page - in_page;
        let least = if pages.len() == 1 { 1 } else { room - page + 1 };
        let length = least + length % (room - least + 1);
        Region {
            address: 0x7f00_0000_0000 + in_page,
            length,
            page_shift,
            pages: pages.into_iter().map(|number| number * page).collect(),
        }
    })
}

impl Region {
    fn parameters(&self, protection_domain: u16) -> RegisterRegion<'_> {
        RegisterRegion {
            protection_domain,
            address: self.address,
            length: self.length,
            page_shift: self.page_shift,
            pages: &self.pages,
            access: VerbsAccess::default(),
        }
    }

    /// Returns the bus address of a byte of the region.
    fn bus(&self, address: u64) -> u64 {
        let page = 1u64 << self.page_shift;
        let offset = address - (self.address & !(page - 1));
        self.pages[usize::try_from(offset / page).unwrap()] + offset % page
    }
}

proptest! {
    #[test]
    fn segments_of_a_buffer_are_its_bytes_page_by_page(
        region in region(),
        skip in any::<u64>(),
        length in any::<u64>(),
    ) {
        let mut objects = objects();
        let domain = objects.create_protection_domain().unwrap();
        let keys = objects.register_region(region.parameters(domain)).unwrap();
        let skip = skip % region.length;
        let length = 1 + length % (region.length - skip).min(9000);
        let mut segments = Vec::new();
        let buffer = Buffer {
            key: keys.local,
            address: region.address + skip,
            bytes: u32::try_from(length).unwrap(),
        };
        let found = objects.regions.buffer(domain, buffer, Need::LocalRead, &mut segments);
        prop_assert_eq!(found, Ok(()));
        let mut at = buffer.address;
        for segment in &segments {
            let last = segment.bytes as u64 - 1;
            prop_assert_eq!(segment.address, region.bus(at));
            prop_assert_eq!(segment.address + last, region.bus(at + last));
            at += segment.bytes as u64;
        }
        prop_assert_eq!(at, buffer.address + length);
    }

    #[test]
    fn buffer_that_leaves_its_region_is_refused(
        region in region(),
        address in prop_oneof![any::<u64>(), 0x7eff_ffff_f000u64..0x7f00_0002_0000],
        bytes in prop_oneof![1u32..0x1_0000, any::<u32>()],
    ) {
        let mut objects = objects();
        let domain = objects.create_protection_domain().unwrap();
        let keys = objects.register_region(region.parameters(domain)).unwrap();
        let mut segments = Vec::new();
        let buffer = Buffer { key: keys.local, address, bytes };
        let found = objects.regions.buffer(domain, buffer, Need::LocalRead, &mut segments);
        let end = address.checked_add(bytes.into());
        let is_inside = address >= region.address
            && end.is_some_and(|end| end <= region.address + region.length);
        prop_assert_eq!(found.is_ok(), is_inside || bytes == 0);
        prop_assert!(found.is_ok() || segments.is_empty());
    }
}

#[test]
fn impossible_regions_are_refused() {
    let mut objects = objects();
    let domain = objects.create_protection_domain().unwrap();
    let mut refused = |address, length, page_shift, pages: &[u64]| {
        let parameters = RegisterRegion {
            protection_domain: domain,
            address,
            length,
            page_shift,
            pages,
            access: VerbsAccess::default(),
        };
        let registered = objects.register_region(parameters);
        matches!(registered, Err(ObjectError::Invalid { .. }))
    };
    assert!(refused(0, 0, 12, &[]), "empty");
    assert!(refused(0, 4096, 12, &[]));
    assert!(refused(0, 4097, 12, &[0]));
    assert!(refused(0, 4096, 12, &[0, 4096]));
    assert!(refused(1, 4096, 12, &[0]), "it reaches into a second page");
    assert!(refused(0, 4096, 12, &[8]));
    assert!(refused(0, 4096, 11, &[0]));
    assert!(refused(0, 4096, 64, &[0]));
    assert!(refused(u64::MAX, 2, 12, &[0, 4096]));
    assert!(refused(0, u64::MAX, 12, &[0]));
    assert!(!refused(u64::MAX - 4095, 4096, 12, &[u64::MAX - 4095]));
}

#[test]
fn key_counts_in_its_domain_and_for_what_it_permits() {
    let mut objects = objects();
    let domain = objects.create_protection_domain().unwrap();
    let other = objects.create_protection_domain().unwrap();
    let mut register = |access| {
        let parameters = RegisterRegion {
            protection_domain: domain,
            address: 0x1000,
            length: 4096,
            page_shift: 12,
            pages: &[0x5000],
            access,
        };
        objects.register_region(parameters).unwrap()
    };
    let none = register(VerbsAccess::default());
    let read = register(VerbsAccess {
        remote_read: true,
        ..VerbsAccess::default()
    });
    let write = register(VerbsAccess {
        remote_write: true,
        local_write: true,
        ..VerbsAccess::default()
    });
    let permits = |domain, keys: RegionKeys, need| {
        let key = match need {
            Need::LocalRead | Need::LocalWrite => keys.local,
            Need::RemoteRead | Need::RemoteWrite => keys.remote,
        };
        let mut segments = Vec::new();
        let buffer = Buffer {
            key,
            address: 0x1000,
            bytes: 4,
        };
        let found = objects.regions.buffer(domain, buffer, need, &mut segments);
        assert_eq!(found.is_ok(), !segments.is_empty());
        found
    };
    let needs = [
        Need::LocalRead,
        Need::LocalWrite,
        Need::RemoteRead,
        Need::RemoteWrite,
    ];
    for (keys, permitted) in [
        (none, [true, false, false, false]),
        (read, [true, false, true, false]),
        (write, [true, true, false, true]),
    ] {
        assert_eq!(
            needs.map(|need| permits(domain, keys, need).is_ok()),
            permitted
        );
        for need in needs {
            let refused = permits(other, keys, need);
            assert!(
                matches!(refused, Err(AccessError::UnknownKey { .. })),
                "{need:?}"
            );
        }
        assert_ne!(keys.local, keys.remote);
        let swapped = RegionKeys {
            local: keys.remote,
            remote: keys.local,
        };
        assert!(permits(domain, swapped, Need::RemoteRead).is_err());
    }
}

#[test]
fn freed_region_is_found_by_none_of_its_keys() {
    let mut objects = objects();
    let domain = objects.create_protection_domain().unwrap();
    let parameters = RegisterRegion {
        protection_domain: domain,
        address: 0,
        length: 4096,
        page_shift: 12,
        pages: &[0],
        access: VerbsAccess {
            remote_read: true,
            ..VerbsAccess::default()
        },
    };
    let mut seen = std::collections::HashSet::new();
    for _ in 0..100 {
        let keys = objects.register_region(parameters).unwrap();
        assert!(keys.local <= 0xff_ffff);
        assert!(seen.insert(keys.remote), "a key is not used again soon");
        assert_eq!(objects.regions.count(), 1);
        objects.deregister_region(keys.local).unwrap();
        let mut segments = Vec::new();
        for (key, need) in [
            (keys.local, Need::LocalRead),
            (keys.remote, Need::RemoteRead),
        ] {
            let buffer = Buffer {
                key,
                address: 0,
                bytes: 1,
            };
            let found = objects.regions.buffer(domain, buffer, need, &mut segments);
            assert!(found.is_err());
        }
        assert!(objects.deregister_region(keys.local).is_err());
    }
    objects.destroy_protection_domain(domain).unwrap();
}

#[test]
fn pages_of_all_regions_have_a_limit() {
    let mut objects = objects();
    let domain = objects.create_protection_domain().unwrap();
    let pages = vec![0; limits::PAGES_PER_REGION];
    let length = (pages.len() as u64) << 12;
    let parameters = RegisterRegion {
        protection_domain: domain,
        address: 0,
        length,
        page_shift: 12,
        pages: &pages,
        access: VerbsAccess::default(),
    };
    // The limit counts pages, so no ranges of a million pages are needed.
    objects.regions.pages = limits::PAGES - pages.len() + 1;
    let exhausted = ObjectError::Exhausted {
        kind: ObjectKind::MemoryRegion,
        limit: limits::PAGES,
    };
    assert_eq!(objects.register_region(parameters), Err(exhausted));
    assert_eq!(objects.regions.count(), 0);
}

/// Returns a region of one page.
fn one_page(protection_domain: u16) -> RegisterRegion<'static> {
    RegisterRegion {
        protection_domain,
        address: 0x1000,
        length: 4096,
        page_shift: 12,
        pages: &[0x1000],
        access: VerbsAccess::default(),
    }
}

#[test]
fn regions_have_a_limit_that_a_deregistered_one_frees() {
    let mut objects = objects();
    let domain = objects.create_protection_domain().unwrap();
    let mut last = None;
    for _ in 0..limits::MEMORY_REGIONS {
        last = Some(objects.register_region(one_page(domain)).unwrap());
    }
    let exhausted = ObjectError::Exhausted {
        kind: ObjectKind::MemoryRegion,
        limit: limits::MEMORY_REGIONS,
    };
    let refused = objects.register_region(one_page(domain));
    assert_eq!(refused, Err(exhausted));
    assert_eq!(objects.regions.count(), limits::MEMORY_REGIONS);
    objects.deregister_region(last.unwrap().local).unwrap();
    objects.register_region(one_page(domain)).unwrap();
    let refused = objects.register_region(one_page(domain));
    assert_eq!(refused, Err(exhausted));
}
