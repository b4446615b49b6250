//! All pairs of a machine's providers and clients.

use peerbar_rule::Way;
use serde::Serialize;

use crate::address::Address;
use crate::kernel;
use crate::labels::Labels;
use crate::machine::Machine;
use crate::pair::Pair;
use crate::warnings;
use crate::wire::{self, Distance, Wire};

/// The verdicts on all pairs.
#[derive(Clone, Debug, Serialize)]
pub struct Matrix {
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
    /// It has memory for peers.
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

impl Machine {
    /// Returns the verdicts on all pairs of devices of interest, or of all functions except bridges
    /// if `all` is set.
    pub fn matrix(&self, all: bool) -> Matrix {
        self.matrix_of(all, |(client, provider)| self.cell(client, provider))
    }

    /// Returns the same, and everything about each pair in the same order. Each pair is judged once.
    pub(crate) fn matrix_with_pairs(&self, all: bool) -> (Matrix, Vec<Pair>) {
        let mut pairs = Vec::new();
        let matrix = self.matrix_of(all, |(client, provider)| {
            let pair = self.pair(client, provider);
            let cell = Cell::of_pair(&pair);
            pairs.push(pair);
            cell
        });
        (matrix, pairs)
    }

    /// Returns the matrix with the cells that `judge` returns.
    fn matrix_of(&self, all: bool, judge: impl FnMut(Ends) -> Cell) -> Matrix {
        let labels = Labels::of(self);
        let device = |address: &Address| -> Option<Device> {
            let function = self.function(*address)?;
            Some(Device {
                label: labels.label(*address).to_owned(),
                address: *address,
                description: function.description.clone(),
                is_provider: function.is_provider(),
                memory: function.provider_bar().and_then(|bar| bar.size),
                numa_node: function.numa_node,
                driver: function.driver.clone(),
            })
        };
        let listed = self
            .functions
            .iter()
            .filter(|(_, function)| function.is_listed(all));
        let devices: Vec<Device> = listed.filter_map(|(address, _)| device(address)).collect();
        Matrix {
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
    use crate::samples::{REDIRECTS, machine, two_sockets};

    #[test]
    fn cells_are_the_same_with_everything_about_their_pairs() {
        let shown = two_sockets(REDIRECTS);
        let hidden = shown.replace("ACSCtl", "").replace("NUMA node", "Node");
        for text in [shown, hidden] {
            let machine = machine(&text);
            let (matrix, pairs) = machine.matrix_with_pairs(true);
            assert_eq!(matrix.pairs, machine.matrix(true).pairs);
            assert!(!pairs.is_empty() && pairs.len() == matrix.pairs.len());
        }
    }
}
