//! All pairs of a machine's providers and clients.

use peerbar_rule::Way;
use serde::Serialize;

use crate::address::Address;
use crate::kernel;
use crate::labels::Labels;
use crate::machine::Machine;
use crate::warnings;
use crate::wire::{self, Distance};

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
#[derive(Clone, Debug, Serialize)]
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
        let providers = devices.iter().filter(|device| device.is_provider);
        let pairs = providers.flat_map(|provider| {
            let clients = devices
                .iter()
                .filter(|client| client.address != provider.address);
            clients.map(|client| self.cell(client.address, provider.address))
        });
        Matrix {
            pairs: pairs.collect(),
            warnings: warnings::of_machine(self),
            conflicts: self.conflicts.iter().map(ToString::to_string).collect(),
            gaps: self.gaps.clone(),
            devices,
        }
    }

    /// Returns the verdicts on DMA of `client` to memory of `provider`, without reasons.
    pub fn cell(&self, client: Address, provider: Address) -> Cell {
        let verdict = kernel::verdict(self, client, provider);
        let wire = wire::wire(self, client, provider);
        Cell {
            provider,
            client,
            way: verdict.as_ref().map(|verdict| verdict.first.way),
            is_conditional: verdict.is_some_and(|verdict| verdict.certain().is_none()),
            distance: wire.as_ref().map(|wire| wire.distance),
            is_redirected: wire
                .as_ref()
                .is_some_and(|wire| !wire.redirected_at.is_empty()),
            is_wire_conditional: wire.is_some_and(|wire| {
                !wire.is_distance_known
                    || wire.redirected_at.is_empty() && !wire.unknown_at.is_empty()
            }),
        }
    }
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
