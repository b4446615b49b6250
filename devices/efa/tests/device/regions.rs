//! Registration of memory regions, by each kind of list of pages.

use peerbar_efa_spec::admin::memory_region::{
    DeregMr, LIST_PAGE_ADDRESSES, Permissions, RegMr, RegMrFlags, RegisteredMr,
};
use peerbar_efa_spec::admin::resource::Numbered;
use peerbar_efa_spec::admin::{ControlBuffer, Opcode, Status};
use zerocopy::{FromZeros, IntoBytes};

use crate::driver::{DATA, Driver, Local};
use crate::objects::allocate;

const CONTROL_DATA: u8 = 2;
const INDIRECT: u8 = 4;
/// Address of the first block of an indirect list, and addresses of its pages.
const BLOCKS: u64 = DATA;
const LIST_PAGES: u64 = DATA + 0x1_0000;

struct Test {
    driver: Driver<Local>,
    pd: u16,
}

impl Test {
    fn new() -> Self {
        let mut driver = Driver::new();
        let pd = allocate(&mut driver, Opcode::AllocPd);
        Self { driver, pd }
    }

    /// Returns a region of `count` pages of 4 KiB, without addresses.
    fn region(&self, count: u64) -> RegMr {
        let mut region = RegMr::new_zeroed();
        region.pd = self.pd.into();
        region.length = (count * 4096).into();
        region.iova = 0x7000_0000_0000.into();
        region.flags = RegMrFlags::new().with_page_shift(12);
        region.permissions = Permissions::new().with_local_write(true);
        region
    }

    /// Registers a region by a list.
    fn register(&mut self, flags: u8, mut region: RegMr, list: ControlBuffer) -> u8 {
        let bytes = list.as_bytes();
        region.inline_pages.as_mut_bytes()[..bytes.len()].copy_from_slice(bytes);
        let completion = self
            .driver
            .execute_with(flags, Opcode::RegMr, region.as_bytes());
        completion.status
    }

    /// Writes the addresses of `count` pages one after the other.
    fn write_addresses(&self, address: u64, first: u64, count: u64) {
        let addresses: Vec<_> = (first..first + count)
            .flat_map(|page| (page * 4096).to_le_bytes())
            .collect();
        self.driver.write_ram(address, &addresses);
    }

    /// Writes a list of `count` pages as Linux' driver does: blocks of 510 pointers to pages of the
    /// list. Returns the first block.
    fn write_indirect(&self, count: u64) -> ControlBuffer {
        self.write_addresses(LIST_PAGES, 0x100, count);
        let pages = count.div_ceil(512);
        let most = LIST_PAGE_ADDRESSES as u64;
        let lengths: Vec<_> = (0..pages.div_ceil(most))
            .map(|block| (pages - block * most).min(most))
            .collect();
        let buffer = |block: u64| ControlBuffer {
            length: (lengths[block as usize] as u32 * 8 + 12).into(),
            address: (BLOCKS + block * 4096).into(),
        };
        for (block, length) in (0..).zip(&lengths) {
            let at = BLOCKS + block * 4096;
            for index in 0..*length {
                let page = LIST_PAGES + (block * most + index) * 4096;
                self.driver.write_ram(at + index * 8, &page.to_le_bytes());
            }
            if block + 1 < lengths.len() as u64 {
                let next = buffer(block + 1);
                self.driver.write_ram(at + length * 8, next.as_bytes());
            }
        }
        buffer(0)
    }
}

fn buffer(address: u64, length: u64) -> ControlBuffer {
    ControlBuffer {
        length: (length as u32).into(),
        address: address.into(),
    }
}

#[test]
fn inline_pages_are_registered_and_keys_removed_once() {
    let mut test = Test::new();
    let mut region = test.region(4);
    for (page, address) in region.inline_pages.iter_mut().zip([1u64, 9, 3, 4]) {
        *page = (address * 4096).into();
    }
    let keys: RegisteredMr = test.driver.execute(Opcode::RegMr, &region).view();
    assert_ne!(keys.local_key, keys.remote_key);
    let domain = Numbered {
        number: test.pd.into(),
        reserved: 0.into(),
    };
    let busy = test.driver.execute(Opcode::DeallocPd, &domain);
    busy.expect(Status::ResourceBusy);
    let local_key = keys.local_key;
    for status in [Status::Success, Status::IllegalParameter] {
        let completion = test.driver.execute(Opcode::DeregMr, &DeregMr { local_key });
        completion.expect(status);
    }
}

#[test]
fn contiguous_list_of_pages_is_read() {
    let mut test = Test::new();
    test.write_addresses(DATA, 0x100, 5000);
    let region = test.region(5000);
    let list = buffer(DATA, 5000 * 8);
    let status = test.register(CONTROL_DATA, region, list);
    assert_eq!(status, Status::Success as u8);
    for wrong in [buffer(DATA, 5000 * 8 - 8), buffer(DATA, 5001 * 8)] {
        let status = test.register(CONTROL_DATA, region, wrong);
        assert_eq!(status, Status::IllegalParameter as u8);
    }
}

#[test]
fn indirect_list_is_followed_block_by_block() {
    let mut test = Test::new();
    for count in [5, 512, 513, 510 * 512, 510 * 512 + 1] {
        let list = test.write_indirect(count);
        let region = test.region(count);
        let status = test.register(CONTROL_DATA | INDIRECT, region, list);
        assert_eq!(status, Status::Success as u8, "{count} pages");
    }
}

#[test]
fn indirect_list_with_a_wrong_length_is_refused() {
    let mut test = Test::new();
    let count = 510 * 512 + 1;
    let list = test.write_indirect(count);
    let region = test.region(count);
    let flags = CONTROL_DATA | INDIRECT;
    let short = buffer(list.address.get(), 4091);
    let status = test.register(flags, region, short);
    assert_eq!(status, Status::IllegalParameter as u8);
    // The second block points back to the first one.
    let next = BLOCKS + 510 * 8;
    test.driver.write_ram(next, list.as_bytes());
    let status = test.register(flags, region, list);
    assert_eq!(status, Status::IllegalParameter as u8);
}

#[test]
fn list_that_cannot_be_read_ends_the_command_and_no_more() {
    let mut test = Test::new();
    let nowhere = 1 << 40;
    let region = test.region(600);
    let status = test.register(CONTROL_DATA, region, buffer(nowhere, 4800));
    assert_eq!(status, Status::UnknownError as u8);
    let flags = CONTROL_DATA | INDIRECT;
    let status = test.register(flags, region, buffer(u64::MAX - 8, 28));
    assert_eq!(status, Status::UnknownError as u8);
    let list = test.write_indirect(600);
    test.driver.write_ram(BLOCKS + 8, &u64::MAX.to_le_bytes());
    let status = test.register(flags, region, list);
    assert_eq!(status, Status::UnknownError as u8);
    allocate(&mut test.driver, Opcode::AllocPd);
}

#[test]
fn impossible_regions_are_refused() {
    use Status::{IllegalParameter, MalformedRequest};
    let mut test = Test::new();
    type Change = fn(&mut RegMr);
    let changes: [(Change, Status); 9] = [
        (|it| it.pd = 99.into(), IllegalParameter),
        (|it| it.length = 0.into(), IllegalParameter),
        (|it| it.length = u64::MAX.into(), IllegalParameter),
        (|it| it.length = (5 * 4096).into(), IllegalParameter),
        (|it| it.flags.set_page_shift(11), IllegalParameter),
        (|it| it.flags.set_physical(true), IllegalParameter),
        (|it| it.flags.set_reserved(true), MalformedRequest),
        (|it| it.permissions.set_reserved(1), MalformedRequest),
        (|it| it.inline_pages[0] = 7.into(), IllegalParameter),
    ];
    for (number, (change, status)) in changes.into_iter().enumerate() {
        let mut region = test.region(1);
        change(&mut region);
        let completion = test.driver.execute(Opcode::RegMr, &region);
        assert_eq!(completion.status, status as u8, "change {number}");
    }
}
