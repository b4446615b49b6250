//! Decodes the bus addresses of peers' requests.

use std::sync::Arc;

use parking_lot::RwLock;
use peerbar_dma::{Buffer, RegisterWrite, Requester};
use peerbar_pci::{BusAddress, Function, Range, UnsupportedRequest};
use peerbar_switch::{PortId, Unsupported};

use crate::BarMemory;

/// A window that the guest has opened.
#[derive(Clone, Debug)]
pub(crate) struct OpenWindow {
    /// Number of the BAR.
    pub(crate) bar: u8,
    /// Its bus addresses.
    pub(crate) range: Range<BusAddress>,
    /// The memory behind the window.
    pub(crate) memory: BarMemory,
}

/// A function and its open windows. The address of a request is decoded when the request arrives,
/// so that a request that was in progress when a window moved does not reach another BAR.
pub(crate) struct Decoder<F> {
    function: Arc<F>,
    /// The function's requester, which records peers' writes to registers.
    requester: Arc<Requester>,
    windows: RwLock<Vec<OpenWindow>>,
}

impl<F: Function> Decoder<F> {
    /// Makes a decoder without open windows.
    pub(crate) fn new(function: Arc<F>, requester: Arc<Requester>) -> Self {
        Self {
            function,
            requester,
            windows: RwLock::default(),
        }
    }

    /// Returns `true` if [`Decoder::access`] may wait for another process.
    pub(crate) fn makes_peers_wait(&self) -> bool {
        self.function.makes_peers_wait()
    }

    /// Opens these windows and closes all others. Once this returns, no request uses the previous
    /// ones.
    pub(crate) fn set(&self, windows: Vec<OpenWindow>) {
        *self.windows.write() = windows;
    }

    /// Reads or writes on behalf of a peer. Fails while the function's link is down. An access to
    /// an unmapped page fails and is also passed to the function, which may record the fault.
    pub(crate) fn access(
        &self,
        peer: PortId,
        address: BusAddress,
        data: Buffer<'_>,
    ) -> Result<(), Unsupported> {
        if !self.requester.link_is_up() {
            return Err(Unsupported);
        }
        let windows = self.windows.read();
        let (window, offset) = find(&windows, address, data.len())?;
        let to_function = |offset, data: Buffer<'_>| match data {
            Buffer::Read(data) => self.function.peer_read(window.bar, offset, data),
            Buffer::Write(data) => self.function.peer_write(window.bar, offset, data),
        };
        match &window.memory {
            BarMemory::Memory(span) => {
                let offset = span.offset.checked_add(offset).ok_or(Unsupported)?;
                span.file.access(offset, data).map_err(|_| Unsupported)
            }
            BarMemory::Pages(table) => {
                let mut parts = table.parts(offset, data);
                parts.try_for_each(|(offset, mut part)| {
                    table.access(offset, part.reborrow()).map_err(|_| {
                        // The function records the fault; its answer does not matter.
                        let _ = to_function(offset, part);
                        Unsupported
                    })
                })
            }
            BarMemory::Registers | BarMemory::RegistersWithPages(..) => {
                if let Buffer::Write(data) = data {
                    let write = || register_write(peer, (window.bar, offset), data);
                    self.requester.ledger().register_written(write);
                }
                to_function(offset, data).map_err(|UnsupportedRequest| Unsupported)
            }
        }
    }
}

/// Returns the record of a peer's write to registers.
fn register_write(peer: PortId, (bar, offset): (u8, u64), data: &[u8]) -> RegisterWrite {
    let mut value = [0; 8];
    value
        .iter_mut()
        .zip(data)
        .for_each(|(to, byte)| *to = *byte);
    RegisterWrite {
        peer: peer.0,
        bar,
        offset,
        len: u32::try_from(data.len()).unwrap_or(u32::MAX),
        value: u64::from_le_bytes(value),
    }
}

/// Returns the window that holds `len` bytes at `address`, and their offset in it.
fn find(
    windows: &[OpenWindow],
    address: BusAddress,
    len: usize,
) -> Result<(&OpenWindow, u64), Unsupported> {
    let offset_in = |window: &OpenWindow| {
        let offset = window.range.offset_of(address)?;
        (window.range.clip(address, len) == len).then_some(offset)
    };
    windows
        .iter()
        .find_map(|window| Some((window, offset_in(window)?)))
        .ok_or(Unsupported)
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use peerbar_dma::{MemoryFile, PageTable, Span};

    use super::*;

    const PEER: PortId = PortId(7);
    /// A register that peers cannot read.
    const REFUSED: u64 = 0xe08;

    /// A function that records all accesses. Its registers read as the number of the BAR.
    #[derive(Default)]
    struct RecordingFunction(Mutex<Vec<(u8, u64, usize)>>);

    impl Function for RecordingFunction {
        fn bar_read(&self, bar: u8, offset: u64, data: &mut [u8]) {
            self.0.lock().unwrap().push((bar, offset, data.len()));
            data.fill(bar);
        }

        fn peer_read(
            &self,
            bar: u8,
            offset: u64,
            data: &mut [u8],
        ) -> Result<(), UnsupportedRequest> {
            match offset {
                REFUSED => Err(UnsupportedRequest),
                _ => {
                    self.bar_read(bar, offset, data);
                    Ok(())
                }
            }
        }

        fn bar_write(&self, bar: u8, offset: u64, data: &[u8]) {
            self.0.lock().unwrap().push((bar, offset, data.len()));
        }

        fn reset(&self) {}
    }

    /// Registers at 0x1000, memory from the second page of a file at 0x2000, two pages, the second unmapped, at 0x4000.
    fn decoder() -> (Decoder<RecordingFunction>, Arc<MemoryFile>) {
        let file = Arc::new(MemoryFile::create("test", 0x4000).unwrap());
        let table = PageTable::new(file.clone(), 2, 0x1000);
        table.set(0, Some(0x3000)).unwrap();
        let span = Span {
            file: file.clone(),
            offset: 0x1000,
        };
        let window = |bar, address, size, memory| OpenWindow {
            bar,
            range: Range::new(BusAddress(address), size).unwrap(),
            memory,
        };
        let function = Arc::<RecordingFunction>::default();
        let decoder = Decoder::new(function, Arc::new(Requester::new()));
        decoder.set(vec![
            window(0, 0x1000, 0x1000, BarMemory::Registers),
            window(2, 0x2000, 0x1000, BarMemory::Memory(span)),
            window(4, 0x4000, 0x2000, BarMemory::Pages(Arc::new(table))),
        ]);
        (decoder, file)
    }

    fn read(
        decoder: &Decoder<RecordingFunction>,
        address: u64,
        data: &mut [u8],
    ) -> Result<(), Unsupported> {
        decoder.access(PEER, BusAddress(address), Buffer::Read(data))
    }

    fn write(
        decoder: &Decoder<RecordingFunction>,
        address: u64,
        data: &[u8],
    ) -> Result<(), Unsupported> {
        decoder.access(PEER, BusAddress(address), Buffer::Write(data))
    }

    #[test]
    fn write_reaches_each_kind_of_memory() {
        let (decoder, file) = decoder();
        write(&decoder, 0x1004, &[1; 4]).unwrap();
        assert_eq!(*decoder.function.0.lock().unwrap(), [(0, 4, 4)]);
        write(&decoder, 0x2ff8, &[2; 8]).unwrap();
        write(&decoder, 0x4000, &[3; 8]).unwrap();
        let mut data = [0; 8];
        file.read(0x1ff8, &mut data).unwrap();
        assert_eq!(data, [2; 8]);
        file.read(0x3000, &mut data).unwrap();
        assert_eq!(data, [3; 8]);
        read(&decoder, 0x4000, &mut data).unwrap();
        assert_eq!(data, [3; 8]);
        read(&decoder, 0x1000, &mut data).unwrap();
        assert_eq!(data, [0; 8]);
    }

    #[test]
    fn access_to_unmapped_page_fails_and_is_recorded() {
        let (decoder, _) = decoder();
        assert_eq!(write(&decoder, 0x4ff8, &[1; 16]), Err(Unsupported));
        assert_eq!(read(&decoder, 0x5000, &mut [0; 4]), Err(Unsupported));
        let accesses = decoder.function.0.lock().unwrap().clone();
        assert_eq!(accesses, [(4, 0x1000, 8), (4, 0x1000, 4)]);
    }

    #[test]
    fn nothing_is_reached_while_the_link_is_down() {
        let (decoder, file) = decoder();
        let down = |text: &str| decoder.requester.add_fault(text.parse().unwrap());
        down("link-down device").unwrap();
        for address in [0x1004, 0x2000] {
            assert_eq!(write(&decoder, address, &[1; 4]), Err(Unsupported));
        }
        assert!(decoder.function.0.lock().unwrap().is_empty());
        let mut data = [1; 4];
        file.read(0x1000, &mut data).unwrap();
        assert_eq!(data, [0; 4]);
        down("link-up device").unwrap();
        write(&decoder, 0x1004, &[1; 4]).unwrap();
    }

    #[test]
    fn register_write_is_recorded_with_its_first_8_bytes() {
        let event = |data: &[u8]| register_write(PEER, (2, 0x1008), data);
        let expected = RegisterWrite {
            peer: 7,
            bar: 2,
            offset: 0x1008,
            len: 4,
            value: 0x0403_0201,
        };
        assert_eq!(event(&[1, 2, 3, 4]), expected);
        let long = event(&[0xff; 100]);
        assert_eq!((long.len, long.value), (100, u64::MAX));
    }

    #[test]
    fn register_that_the_function_refuses_a_peer_is_unsupported() {
        let (decoder, _) = decoder();
        assert_eq!(
            read(&decoder, 0x1000 + REFUSED, &mut [0; 4]),
            Err(Unsupported)
        );
        read(&decoder, 0x1000, &mut [0; 4]).unwrap();
        assert_eq!(*decoder.function.0.lock().unwrap(), [(0, 0, 4)]);
    }

    #[test]
    fn access_beyond_a_window_is_unsupported() {
        let (decoder, _) = decoder();
        for (address, len) in [(0xffc, 4), (0x1ffc, 8), (0x3000, 1), (u64::MAX, 1)] {
            assert_eq!(
                write(&decoder, address, &vec![0; len]),
                Err(Unsupported),
                "{address:#x}"
            );
        }
        decoder.set(Vec::new());
        assert_eq!(read(&decoder, 0x1000, &mut [0; 4]), Err(Unsupported));
        assert!(decoder.function.0.lock().unwrap().is_empty());
    }
}
