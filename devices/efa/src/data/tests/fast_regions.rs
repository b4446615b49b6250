//! Memory that work requests add to a region, and remove.

use peerbar_efa_spec::admin::memory_region::Permissions;
use peerbar_efa_spec::completion::CompletionStatus as S;
use peerbar_efa_spec::work::{
    FastInvalidation, FastRegistration, FastRegistrationFlags, Operation, SEND_ENTRY_BYTES,
};
use zerocopy::IntoBytes;

use super::connected::{Connected, TO};
use super::fixture::{Adapter, PAYLOAD, Post, RAM, VIRTUAL, entry};
use super::remote::Two;
use crate::limits;
use crate::objects::RegionKeys;

const PAGE: u64 = 4096;
/// Address of the lists of pages.
const LIST: u64 = PAYLOAD + (3 << 20);
const INLINE: u8 = 0;
const DIRECT: u8 = 1;

fn allocate(adapter: &Adapter, pages: usize) -> RegionKeys {
    let mut objects = adapter.path.objects();
    objects.allocate_region(adapter.domain, pages).unwrap()
}

/// Returns an entry that adds memory of this length at [`VIRTUAL`] + [`PAYLOAD`] to a region.
fn register(lkey: u32, length: u64, mode: u8, pages: u64) -> FastRegistration {
    FastRegistration {
        lkey: lkey.into(),
        permissions: Permissions::new()
            .with_local_write(true)
            .with_remote_write(true)
            .with_remote_read(true),
        flags: FastRegistrationFlags::new()
            .with_page_shift(12)
            .with_list_mode(mode),
        reserved: [0; 2],
        iova: (PAYLOAD + VIRTUAL).into(),
        length: length.into(),
        pages: pages.into(),
    }
}

fn invalidate(lkey: u32) -> FastInvalidation {
    FastInvalidation {
        lkey: lkey.into(),
        reserved: [0; 28],
    }
}

/// Returns the entry of an operation with this request.
fn fast(like: &Post, operation: Operation, request: &impl AsRef<[u8]>) -> Vec<u8> {
    let mut bytes = entry(
        &Post {
            operation,
            ..like.clone()
        },
        SEND_ENTRY_BYTES,
    );
    bytes[2] = bytes[2] & 0xf0 | operation as u8;
    bytes[32..].copy_from_slice(request.as_ref());
    bytes
}

impl Connected {
    /// Posts a registration.
    fn give(&mut self, request: &FastRegistration) {
        let like = self.message(0);
        let bytes: Vec<u8> = request.as_bytes().to_vec();
        let entry = fast(&like, Operation::FastRegister, &bytes);
        self.adapter.write_entry(&mut self.a, &entry);
    }

    /// Posts an invalidation.
    fn take_away(&mut self, lkey: u32) {
        let like = self.message(0);
        let bytes = invalidate(lkey).as_bytes().to_vec();
        let entry = fast(&like, Operation::FastInvalidate, &bytes);
        self.adapter.write_entry(&mut self.a, &entry);
    }

    /// Runs the worker, and returns the statuses of all posted requests.
    fn ended(&mut self) -> Vec<S> {
        self.adapter.work();
        self.statuses().into_iter().map(|it| it.1).collect()
    }
}

#[test]
fn memory_is_used_by_what_is_posted_behind_its_registration() {
    for seed in 0..8 {
        let mut adapter = Adapter::with_seed(Some(seed));
        let (a, b) = (adapter.reliable(), adapter.reliable());
        let mut it = Connected::of(adapter, a, b);
        let keys = allocate(&it.adapter, 3);
        // Three pages that are not adjacent.
        let pages = [PAYLOAD + 2 * PAGE, PAYLOAD + 9 * PAGE, PAYLOAD + 4 * PAGE];
        let list = pages.map(u64::to_le_bytes).concat();
        it.adapter.ram.write(LIST, &list).unwrap();
        let data: Vec<u8> = pages
            .iter()
            .zip(1..)
            .flat_map(|(page, part)| it.adapter.fill(*page, 4096, part))
            .collect();
        let local = keys.local + 7;
        it.give(&register(local, 3 * PAGE, DIRECT, LIST));
        for part in 0..6u32 {
            let at = u64::from(part) * 2048;
            let post = Post {
                local: vec![(local, PAYLOAD + at, 2048)],
                remote: (it.keys.remote, TO + at, 2048),
                ..it.rdma(Operation::RdmaWrite, 0)
            };
            it.post(&post);
        }
        it.take_away(local);
        it.post(&Post {
            local: vec![(local, PAYLOAD, 8)],
            ..it.rdma(Operation::RdmaWrite, 8)
        });
        let statuses = it.ended();
        let (last, others) = statuses.split_last().unwrap();
        assert_eq!(others, [S::Ok; 8]);
        assert_eq!(*last, S::LocalInvalidKey, "it has no memory any more");
        assert_eq!(it.adapter.bytes(TO, 3 * 4096), data);
    }
}

#[test]
fn each_registration_has_keys_of_its_own() {
    let mut it = Connected::new();
    let keys = allocate(&it.adapter, 1);
    let write = |it: &Connected, variant: u32| Post {
        remote: (keys.remote + variant, PAYLOAD, 8),
        ..it.rdma(Operation::RdmaWrite, 8)
    };
    for variant in 1..4 {
        it.post(&write(&it, variant));
        it.give(&register(keys.local + variant, 8, INLINE, PAYLOAD));
        it.post(&write(&it, variant));
        it.post(&write(&it, variant - 1));
        it.take_away(keys.local + variant);
        it.post(&write(&it, variant));
        let refused = S::RemoteBadAddress;
        let wanted = [refused, S::Ok, S::Ok, refused, S::Ok, refused];
        assert_eq!(it.ended(), wanted, "variant {variant}");
    }
    let deregistered = |key| it.adapter.path.objects().deregister_region(key);
    assert_eq!(deregistered(keys.local + 0xff), Ok(()));
    assert!(deregistered(keys.local).is_err());
}

#[test]
fn wrong_registrations_are_refused_and_change_nothing() {
    let mut it = Connected::new();
    let keys = allocate(&it.adapter, 2);
    let foreign = {
        let mut objects = it.adapter.path.objects();
        let domain = objects.create_protection_domain().unwrap();
        objects.allocate_region(domain, 2).unwrap()
    };
    it.adapter
        .ram
        .write(LIST, &(PAYLOAD + 1).to_le_bytes())
        .unwrap();
    let good = register(keys.local, 8, INLINE, PAYLOAD);
    let of = |lkey: u32| FastRegistration {
        lkey: lkey.into(),
        ..good
    };
    let reserved = good.flags.with_reserved(true);
    let cases = [
        (of(it.keys.local), S::LocalInvalidKey),
        (of(foreign.local), S::LocalInvalidKey),
        (of(keys.local ^ 0x100), S::LocalInvalidKey),
        (register(keys.local, 0, INLINE, PAYLOAD), S::LocalBadLength),
        (
            register(keys.local, 2 * PAGE, INLINE, PAYLOAD),
            S::LocalBadLength,
        ),
        (
            register(keys.local, 3 * PAGE, DIRECT, LIST),
            S::LocalBadLength,
        ),
        (
            register(keys.local, u64::MAX, DIRECT, LIST),
            S::LocalBadLength,
        ),
        (register(keys.local, PAGE, DIRECT, RAM), S::LocalQueuePair),
        (register(keys.local, PAGE, DIRECT, LIST), S::LocalInvalidKey),
        (
            register(keys.local, 8, 2, PAYLOAD),
            S::LocalUnsupportedOperation,
        ),
        (
            register(keys.local, 8, INLINE, PAYLOAD + 1),
            S::LocalInvalidKey,
        ),
        (
            FastRegistration {
                flags: reserved,
                ..good
            },
            S::LocalUnsupportedOperation,
        ),
        (
            FastRegistration {
                reserved: [0, 1],
                ..good
            },
            S::LocalUnsupportedOperation,
        ),
        (
            FastRegistration {
                flags: good.flags.with_page_shift(11),
                ..good
            },
            S::LocalBadLength,
        ),
    ];
    for (request, status) in cases {
        it.give(&request);
        assert_eq!(it.ended(), [status], "{request:?}");
    }
    it.give(&good);
    it.give(&good);
    it.take_away(keys.local + 1);
    it.take_away(it.keys.local);
    it.take_away(keys.local);
    it.take_away(keys.local);
    let refused = S::LocalInvalidKey;
    let wanted = [S::Ok, refused, refused, refused, S::Ok, refused];
    assert_eq!(it.ended(), wanted);
}

#[test]
fn invalidation_waits_for_the_transfers_before_it() {
    for mut it in [Two::reliable(), Two::sharing()] {
        let length = 200 * PAGE;
        let keys = allocate(&it.near, 200);
        let to = it.far.region(TO, length);
        let pages: Vec<u64> = (0..200).map(|page| PAYLOAD + page * PAGE).collect();
        let list: Vec<u8> = pages.iter().flat_map(|page| page.to_le_bytes()).collect();
        let list_at = PAYLOAD + (7 << 20);
        it.near.ram.write(list_at, &list).unwrap();
        let bytes = u32::try_from(length).unwrap();
        let data = it.near.fill(PAYLOAD, bytes as usize, 5);
        let write = it.rdma(
            Operation::RdmaWrite,
            (keys.local, PAYLOAD, bytes),
            (to.remote, TO, bytes),
        );
        let given = register(keys.local, length, DIRECT, list_at)
            .as_bytes()
            .to_vec();
        let given = fast(&write, Operation::FastRegister, &given);
        let taken = invalidate(keys.local).as_bytes().to_vec();
        let taken = fast(&write, Operation::FastInvalidate, &taken);
        it.near.write_entry(&mut it.a, &given);
        it.send(&write);
        it.near.write_entry(&mut it.a, &taken);
        it.send(&write);
        it.work();
        let statuses = it.near.statuses(&mut it.a);
        let statuses: Vec<_> = statuses.into_iter().map(|it| it.1).collect();
        assert_eq!(statuses, [S::Ok, S::Ok, S::Ok, S::LocalInvalidKey]);
        assert!(it.far.bytes(TO, bytes as usize) == data);
    }
}

#[test]
fn regions_without_memory_count_as_any_others() {
    let adapter = Adapter::new();
    let mut objects = adapter.path.objects();
    let domain = adapter.domain;
    for pages in [0, limits::FAST_PAGES + 1] {
        assert!(objects.allocate_region(domain, pages).is_err());
    }
    assert!(objects.allocate_region(domain + 1, 1).is_err());
    let most = limits::PAGES / limits::FAST_PAGES;
    let keys: Vec<_> = (0..most)
        .map(|_| objects.allocate_region(domain, limits::FAST_PAGES).unwrap())
        .collect();
    assert!(
        objects.allocate_region(domain, 1).is_err(),
        "no pages are left"
    );
    assert!(objects.destroy_protection_domain(domain).is_err());
    for keys in &keys {
        assert_eq!((keys.local & 0xff, keys.remote & 0xff), (0, 0));
        objects.deregister_region(keys.local).unwrap();
    }
    assert_eq!(objects.regions.count(), 0);
    for _ in 0..limits::FAST_REGIONS {
        objects.allocate_region(domain, 1).unwrap();
    }
    assert!(objects.allocate_region(domain, 1).is_err(), "of this kind");
}
