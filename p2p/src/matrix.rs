//! All pairs of a machine's providers and clients.

use std::collections::{BTreeMap, BTreeSet};

use peerbar_rule::Way;
use serde::Serialize;

use crate::address::Address;
use crate::kernel;
use crate::labels::Labels;
use crate::machine::{Function, Iommu, Machine};
use crate::pair::Pair;
use crate::text::in_ranges;
use crate::warnings;
use crate::wire::{self, Distance, Wire};

/// The verdicts on all pairs.
#[derive(Clone, Debug, Serialize)]
pub struct Matrix {
    /// The processor in words, if it is known.
    pub processor: Option<String>,
    /// The kernel's release, or the one that was assumed.
    pub release: String,
    /// The release was not told.
    pub is_release_assumed: bool,
    /// The default mode of the IOMMU, if it is known.
    pub iommu: Option<Iommu>,
    /// The devices that issue DMA, or own memory for peers.
    pub devices: Vec<Device>,
    /// The pairs, in the order of their providers, then of their clients.
    pub pairs: Vec<Cell>,
    /// Obstacles in the whole machine.
    pub warnings: Vec<String>,
    /// The contradictions in the source.
    pub conflicts: Vec<String>,
    /// The facts that the source lacks.
    pub gaps: Vec<String>,
}

/// A device in a matrix.
#[derive(Clone, Debug, Serialize)]
pub struct Device {
    /// Its name.
    pub label: String,
    /// Its address.
    pub address: Address,
    /// Vendor and device in words.
    pub description: String,
    /// It has memory for peers, or doorbells in a large BAR if the matrix has every function.
    pub is_provider: bool,
    /// The size of that memory in bytes, if it is known.
    pub memory: Option<u64>,
    /// NUMA node.
    pub numa_node: Option<u16>,
    /// Its driver.
    pub driver: Option<String>,
}

/// The verdicts on one pair.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Cell {
    /// The device with the memory.
    pub provider: Address,
    /// The device that issues the DMA.
    pub client: Address,
    /// The kernel's way, or `None` if the bridges above one of the two are unknown.
    pub way: Option<Way>,
    /// The way depends on facts that the source lacks.
    pub is_conditional: bool,
    /// The distance.
    pub distance: Option<Distance>,
    /// ACS redirects the requests on the wire.
    pub is_redirected: bool,
    /// The way on the wire depends on facts that the source lacks.
    pub is_wire_conditional: bool,
}

/// The verdicts on all pairs, and everything about each.
#[derive(Clone, Debug)]
pub(crate) struct Detailed {
    pub(crate) matrix: Matrix,
    /// The pairs of the matrix, in the same order.
    pub(crate) pairs: Vec<Pair>,
    /// The devices that the matrix lacks, because it has others of their kind.
    pub(crate) left_out: Vec<Device>,
}

/// The most functions of a device that a page shows if they are alike. A device without virtual
/// functions has no more.
const MOST_ALIKE: usize = 8;
/// The number of them that stand for more.
const EXAMPLES: usize = 2;

impl Machine {
    /// Returns the verdicts on all pairs of devices of interest, or of all functions except bridges
    /// if `all` is set. Network adapters with doorbells in a large BAR are then providers, too.
    pub fn matrix(&self, all: bool) -> Matrix {
        let devices = self.listed(all);
        let groups = (0..).zip(self.groups(&devices));
        let groups: BTreeMap<Address, usize> = groups
            .flat_map(|(number, group)| {
                let addresses = group.into_iter().map(|device| device.address);
                addresses.map(move |address| (address, number))
            })
            .collect();
        let mut cells: BTreeMap<[Option<&usize>; 2], Cell> = BTreeMap::new();
        self.matrix_of(devices, |(client, provider)| {
            let key = [client, provider].map(|end| groups.get(&end));
            let cell = cells.entry(key);
            let cell = cell.or_insert_with(|| self.cell(client, provider));
            Cell {
                client,
                provider,
                ..cell.clone()
            }
        })
    }

    /// Returns the matrix for a reader, and the devices that it lacks. Two stand for many functions
    /// of a device that are alike, such as virtual functions: their pairs have the same verdicts.
    pub(crate) fn overview(&self, all: bool) -> (Matrix, Vec<Device>) {
        let (shown, left_out) = self.without_alike(self.listed(all));
        let matrix = self.matrix_of(shown, |(client, provider)| self.cell(client, provider));
        (matrix, left_out)
    }

    /// Returns the same, and everything about each pair, which is judged once.
    pub(crate) fn detailed(&self, all: bool) -> Detailed {
        let (shown, left_out) = self.without_alike(self.listed(all));
        let mut pairs = Vec::new();
        let matrix = self.matrix_of(shown, |(client, provider)| {
            let pair = self.pair(client, provider);
            let cell = Cell::of_pair(&pair);
            pairs.push(pair);
            cell
        });
        Detailed {
            matrix,
            pairs,
            left_out,
        }
    }

    /// Splits off devices whose verdicts are those of others in the list.
    fn without_alike(&self, devices: Vec<Device>) -> (Vec<Device>, Vec<Device>) {
        let groups = self.groups(&devices).into_iter();
        let large = groups.filter(|group| group.len() > MOST_ALIKE);
        let left_out: BTreeSet<Address> = large
            .flat_map(|group| group.into_iter().skip(EXAMPLES))
            .map(|device| device.address)
            .collect();
        let is_shown = |device: &Device| !left_out.contains(&device.address);
        devices.into_iter().partition(is_shown)
    }

    /// Returns the devices, those that are alike together.
    fn groups<'d>(&self, devices: &'d [Device]) -> Vec<Vec<&'d Device>> {
        let mut groups: Vec<Vec<&Device>> = Vec::new();
        for device in devices {
            let group = groups.iter_mut().find(|group| {
                let first = group.first();
                first.is_some_and(|first| self.are_alike(first, device))
            });
            match group {
                Some(group) => group.push(device),
                None => groups.push(vec![device]),
            }
        }
        groups
    }

    /// Returns `true` if both are functions of one device with the same properties on which
    /// verdicts depend.
    fn are_alike(&self, one: &Device, other: &Device) -> bool {
        let properties = |device: &Device| {
            let function = self.function(device.address)?;
            let may_have_acs = kernel::may_have_acs(self, device.address);
            Some((function.kind(), function.acs, function.iommu, may_have_acs))
        };
        (one.is_provider, one.memory, &one.driver, one.numa_node)
            == (
                other.is_provider,
                other.memory,
                &other.driver,
                other.numa_node,
            )
            && properties(one) == properties(other)
            && self.is_one_device(one.address, other.address)
    }

    /// Returns the devices of a matrix.
    fn listed(&self, all: bool) -> Vec<Device> {
        let labels = Labels::of(self);
        let device = |(address, function): (&Address, &Function)| {
            let is_provider = function.is_provider() || all && function.is_target();
            let bar = function.provider_bar().filter(|_| is_provider);
            Device {
                label: labels.label(*address).to_owned(),
                address: *address,
                description: function.description.clone(),
                is_provider,
                memory: bar.and_then(|bar| bar.size),
                numa_node: function.numa_node,
                driver: function.driver.clone(),
            }
        };
        let listed = self
            .functions
            .iter()
            .filter(|(_, function)| function.is_listed(all));
        listed.map(device).collect()
    }

    /// Returns the matrix of `devices` with the cells that `judge` returns.
    fn matrix_of(&self, devices: Vec<Device>, judge: impl FnMut(Ends) -> Cell) -> Matrix {
        let host = &self.host;
        Matrix {
            processor: host.processor(),
            release: host
                .release
                .clone()
                .unwrap_or_else(|| self.release().to_string()),
            is_release_assumed: host.release.is_none(),
            iommu: host.iommu,
            pairs: pairs_of(&devices).into_iter().map(judge).collect(),
            warnings: warnings::of_machine(self),
            conflicts: self.conflicts.iter().map(ToString::to_string).collect(),
            gaps: self.gaps.clone(),
            devices,
        }
    }

    /// Returns the verdicts on DMA of `client` to memory of `provider`, without reasons.
    pub fn cell(&self, client: Address, provider: Address) -> Cell {
        let verdict = kernel::verdict(self, client, provider);
        let kernel = verdict.map(|verdict| (verdict.first.way, verdict.certain().is_none()));
        let wire = wire::wire(self, client, provider);
        Cell::of_verdicts((client, provider), kernel, wire.as_ref())
    }
}

/// A client and a provider.
type Ends = (Address, Address);

/// Returns the clients of each provider among `devices`.
fn pairs_of(devices: &[Device]) -> Vec<Ends> {
    let providers = devices.iter().filter(|device| device.is_provider);
    let pairs = providers.flat_map(|provider| {
        let clients = devices
            .iter()
            .filter(|client| client.address != provider.address);
        clients.map(|client| (client.address, provider.address))
    });
    pairs.collect()
}

/// Returns the word for a way in a table.
fn word(way: Way) -> &'static str {
    match way {
        Way::NotSupported => "no",
        Way::ThroughHostBridge => "host",
        Way::BusAddress => "bus",
    }
}

/// Returns a sentence about the devices that a matrix lacks, or `None` if it is complete.
pub(crate) fn left_out_note(left_out: &[Device]) -> Option<String> {
    let names: Vec<&str> = left_out
        .iter()
        .map(|device| device.label.as_str())
        .collect();
    let first = names.first()?;
    Some(format!(
        "{} functions are left out, since two others of their device stand for them: {}. `peerbar p2p {first} DEVICE` \
         explains a pair of one of them.",
        names.len(),
        in_ranges(&names)
    ))
}

impl Cell {
    /// Returns the cell of a pair about which everything is known.
    fn of_pair(pair: &Pair) -> Self {
        let kernel = pair.kernel.as_ref();
        let kernel = kernel.map(|kernel| (kernel.way, !kernel.conditions.is_empty()));
        Self::of_verdicts((pair.client, pair.provider), kernel, pair.wire.as_ref())
    }

    /// Returns the cell with the kernel's way, which may be conditional, and the way on the wire.
    fn of_verdicts(
        (client, provider): Ends,
        kernel: Option<(Way, bool)>,
        wire: Option<&Wire>,
    ) -> Self {
        Self {
            provider,
            client,
            way: kernel.map(|(way, _)| way),
            is_conditional: kernel.is_some_and(|(_, is_conditional)| is_conditional),
            distance: wire.map(|wire| wire.distance),
            is_redirected: wire.is_some_and(|wire| !wire.redirected_at.is_empty()),
            is_wire_conditional: wire.is_some_and(|wire| {
                !wire.is_distance_known
                    || wire.redirected_at.is_empty() && !wire.unknown_at.is_empty()
            }),
        }
    }

    /// Returns the kernel's way in a word: `bus`, `host`, `no`; `bus?` if it is conditional, `?` if
    /// it is unknown.
    pub fn kernel_word(&self) -> String {
        let mark = if self.is_conditional { "?" } else { "" };
        self.way
            .map_or_else(|| "?".to_owned(), |way| format!("{}{mark}", word(way)))
    }

    /// Returns the distance in a word, with a mark if ACS sends requests up.
    pub fn wire_word(&self) -> String {
        let mark = match (self.is_redirected, self.is_wire_conditional) {
            (_, true) => "?",
            (true, _) => "^",
            _ => "",
        };
        self.distance.map_or_else(
            || "?".to_owned(),
            |distance| format!("{}{mark}", distance.word()),
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::html::page_of;
    use crate::samples::{REDIRECTS, at, machine, two_sockets};
    use crate::text;

    #[test]
    fn cells_are_the_same_with_everything_about_their_pairs() {
        let shown = two_sockets(REDIRECTS);
        let hidden = shown.replace("ACSCtl", "").replace("NUMA node", "Node");
        for text in [shown, hidden] {
            let machine = machine(&text);
            let Detailed {
                matrix,
                pairs,
                left_out,
            } = machine.detailed(true);
            assert_eq!(matrix.pairs, machine.matrix(true).pairs);
            assert!(!pairs.is_empty() && pairs.len() == matrix.pairs.len() && left_out.is_empty());
        }
    }

    #[test]
    fn json_of_a_matrix_names_processor_kernel_and_iommu() {
        let text = format!(
            "Linux box 6.8.0 #1 SMP x86_64 GNU/Linux\nCommand line: iommu=pt\n{}",
            two_sockets(REDIRECTS)
        );
        let matrix = serde_json::to_value(machine(&text).matrix(false)).unwrap();
        assert_eq!(matrix["processor"], "Intel processor");
        assert_eq!(
            (&matrix["release"], &matrix["is_release_assumed"]),
            (&"6.8.0".into(), &false.into())
        );
        assert_eq!(matrix["iommu"], "pass-through");
    }

    #[test]
    fn doorbells_of_an_adapter_are_no_memory() {
        const DOORBELLS: &str =
            "[15b3:1017]\n\tRegion 0: Memory at 3bffe000000 (64-bit, prefetchable) [size=32M]";
        let text = two_sockets(REDIRECTS).replace("[15b3:1017]", DOORBELLS);
        let mut machine = machine(&text);
        let adapter = at("86:00.0");
        let rows = |machine: &Machine, all| {
            let matrix = machine.matrix(all);
            let mut devices = matrix.devices.into_iter();
            let device = devices.find(|device| device.address == adapter).unwrap();
            let is_row = matrix.pairs.iter().any(|cell| cell.provider == adapter);
            assert_eq!(device.is_provider, is_row);
            (is_row, device.memory)
        };
        assert_eq!(rows(&machine, false), (false, None));
        assert_eq!(rows(&machine, true), (true, Some(32 << 20)));
        let doorbells = machine.function(adapter).unwrap();
        assert!(doorbells.is_target() && !doorbells.is_provider());
        machine.functions.get_mut(&adapter).unwrap().p2pmem = Some(true);
        assert_eq!(rows(&machine, false), (true, Some(32 << 20)));
    }

    #[test]
    fn two_virtual_functions_stand_for_many() {
        let machine = |count: u8| {
            let mut machine = machine(&two_sockets(REDIRECTS));
            let function = machine.function(at("86:00.0")).cloned().unwrap();
            for number in 0..count {
                let address = Address {
                    device: number / 8 + 1,
                    function: number % 8,
                    ..at("86:00.0")
                };
                let function = Function {
                    driver: None,
                    ..function.clone()
                };
                machine.functions.insert(address, function);
            }
            machine
        };
        let few = machine(8).detailed(false);
        assert_eq!((few.matrix.devices.len(), few.left_out.len()), (12, 0));
        let many = machine(128);
        let Detailed {
            matrix,
            pairs,
            left_out,
        } = many.detailed(false);
        assert_eq!(
            (matrix.devices.len(), pairs.len(), left_out.len()),
            (6, 5, 126)
        );
        let example = matrix.pairs.last().unwrap();
        for left_out in left_out {
            let cell = many.cell(left_out.address, example.provider);
            assert_eq!(
                Cell {
                    client: example.client,
                    ..cell
                },
                *example
            );
        }
        let page = page_of(&many);
        let note = "126 functions are left out, since two others of their device stand for them: nic3-128.";
        assert!(page.contains(note) && page.contains(">nic128<"), "{page}");
        assert!(page.len() < 100_000);
        let (overview, left_out) = many.overview(false);
        let text = text::matrix(&many, &overview, &left_out, text::WIDTH);
        assert!(text.contains("\n  126 functions are left out, "), "{text}");
        assert!(text.len() < 3000);
        let all = many.matrix(false);
        assert_eq!((all.devices.len(), all.pairs.len()), (132, 131));
    }

    #[test]
    fn cells_of_functions_that_are_alike_are_their_own() {
        for text in [
            two_sockets(REDIRECTS),
            two_sockets(REDIRECTS).replace("ACSCtl", ""),
        ] {
            let mut machine = machine(&text);
            let mut function = machine.function(at("86:00.0")).cloned().unwrap();
            function
                .bars
                .clone_from(&machine.function(at("1a:00.0")).unwrap().bars);
            for number in 0..20 {
                let address = Address {
                    device: number / 8 + 1,
                    function: number % 8,
                    ..at("86:00.0")
                };
                machine.functions.insert(address, function.clone());
            }
            let pairs = machine.matrix(true).pairs;
            assert!(pairs.len() > 400, "{}", pairs.len());
            for cell in pairs {
                assert_eq!(cell, machine.cell(cell.client, cell.provider));
            }
        }
    }
}
