//! Scenarios made in Rust. A builder makes the text of a scenario file, which is read like any
//! other.

use std::path::{Path, PathBuf};

use toml::{Table, Value};

use super::contents::Scenario;
use super::error::ScenarioError;
use super::group::GuestGroup;
use crate::iommu::Iommu;

/// Builds a scenario for a [`crate::Lab`]. The methods are named after tables and keys of a
/// scenario file.
#[derive(Clone, Debug)]
pub struct ScenarioBuilder {
    name: String,
    file: Table,
    /// The guest that tables are added to.
    guest: Option<String>,
}

/// An `[[nvme]]` table.
#[derive(Clone, Debug)]
pub struct NvmeBuilder(Table);

/// A `[[gpu]]` table.
#[derive(Clone, Debug)]
pub struct GpuBuilder(Table);

/// A `[[nic]]` table.
#[derive(Clone, Debug)]
pub struct NicBuilder(Table);

/// A `[[device]]` table.
#[derive(Clone, Debug)]
pub struct DeviceBuilder(Table);

impl ScenarioBuilder {
    /// Returns a scenario without devices.
    pub fn new(name: &str) -> Self {
        Self {
            name: name.to_owned(),
            file: named(name),
            guest: None,
        }
    }

    /// Sets a key at the top, such as `timeout`.
    pub fn key(mut self, key: &str, value: impl Into<Value>) -> Self {
        self.file.insert(key.to_owned(), value.into());
        self
    }

    /// Gives the guest the tools root, which commands run in.
    pub fn tools(self) -> Self {
        self.key("tools", true)
    }

    /// Sets a key of `[machine]`, such as `cpu`.
    pub fn machine(mut self, key: &str, value: impl Into<Value>) -> Self {
        let machine = self.file.entry("machine");
        if let Value::Table(machine) = machine.or_insert(Value::Table(Table::new())) {
            machine.insert(key.to_owned(), value.into());
        }
        self
    }

    /// Adds a guest, which owns all bridges, switches, devices and modules that are added after it.
    pub fn guest(self, name: &str) -> Self {
        Self {
            guest: Some(name.to_owned()),
            ..self.push("guest", named(name))
        }
    }

    /// Impairs packets between adapters, by a rule such as `nic0->nic1 loss=1%`. Adapters have a
    /// fabric without it, too.
    pub fn impair(mut self, rule: &str) -> Self {
        let fabric = self.file.entry("fabric");
        if let Value::Table(fabric) = fabric.or_insert(Value::Table(Table::new())) {
            let rules = fabric.entry("impair");
            if let Value::Array(rules) = rules.or_insert(Value::Array(Vec::new())) {
                rules.push(rule.into());
            }
        }
        self
    }

    /// Sets the machine's IOMMU.
    pub fn iommu(self, iommu: Iommu) -> Self {
        self.machine("iommu", iommu.word())
    }

    /// Loads a module of the kernel with these parameters, such as `io_timeout=3`.
    pub fn module(self, name: &str, parameters: &str) -> Self {
        let mut table = named(name);
        table.insert("parameters".to_owned(), parameters.into());
        self.add("module", table)
    }

    /// Adds a host bridge.
    pub fn host_bridge(self, name: &str) -> Self {
        self.add("host-bridge", named(name))
    }

    /// Adds a switch below the machine's own host bridge.
    pub fn switch(self, name: &str) -> Self {
        self.add("switch", named(name))
    }

    /// Adds a switch below the host bridge `bridge`.
    pub fn switch_below(self, name: &str, bridge: &str) -> Self {
        let mut table = named(name);
        table.insert("below".to_owned(), bridge.into());
        self.add("switch", table)
    }

    /// Adds an NVMe controller.
    pub fn nvme(self, nvme: NvmeBuilder) -> Self {
        self.add("nvme", nvme.0)
    }

    /// Adds a GPU.
    pub fn gpu(self, gpu: GpuBuilder) -> Self {
        self.add("gpu", gpu.0)
    }

    /// Adds an RDMA network adapter.
    pub fn nic(self, nic: NicBuilder) -> Self {
        self.add("nic", nic.0)
    }

    /// Adds a device with a server of another project.
    pub fn device(self, device: DeviceBuilder) -> Self {
        self.add("device", device.0)
    }

    fn add(self, kind: &str, mut table: Table) -> Self {
        if let Some(guest) = &self.guest {
            table.insert("guest".to_owned(), guest.as_str().into());
        }
        self.push(kind, table)
    }

    fn push(mut self, kind: &str, table: Table) -> Self {
        let tables = self.file.entry(kind);
        if let Value::Array(tables) = tables.or_insert(Value::Array(Vec::new())) {
            tables.push(Value::Table(table));
        }
        self
    }

    /// Builds the scenario.
    ///
    /// # Errors
    /// A mistake, with its device or other table.
    pub fn build(self) -> Result<Scenario, ScenarioError> {
        let text = self.file.to_string();
        let built = Scenario::parse_interactive(&self.path(), text.clone());
        built.map_err(|error| self.located(error, &text))
    }

    /// Builds the scenario of several guests. Returns `None` if [`ScenarioBuilder::guest`] has
    /// added none.
    ///
    /// # Errors
    /// Those of [`ScenarioBuilder::build`].
    pub fn build_group(self) -> Result<Option<GuestGroup>, ScenarioError> {
        let text = self.file.to_string();
        let built = GuestGroup::parse_interactive(&self.path(), text.clone());
        built.map_err(|error| self.located(error, &text))
    }

    /// Returns the error with a table in place of a line of `text`, which no one but the builder
    /// has seen.
    fn located(&self, error: ScenarioError, text: &str) -> ScenarioError {
        match error {
            ScenarioError::Invalid { line, message, .. } => ScenarioError::Built {
                scenario: self.name.clone(),
                table: table_at(text, line),
                message,
            },
            error => error,
        }
    }

    fn path(&self) -> PathBuf {
        PathBuf::from(format!("{}.toml", self.name))
    }
}

/// Keys of every device's table.
macro_rules! keys_of_devices {
    ($($builder:ty),*) => {$(
        impl $builder {
            /// Sets a key, such as `link`.
            pub fn key(mut self, key: &str, value: impl Into<Value>) -> Self {
                self.0.insert(key.to_owned(), value.into());
                self
            }

            /// Puts it below a switch or a host bridge.
            pub fn below(self, parent: &str) -> Self {
                self.key("below", parent)
            }
        }
    )*};
}

keys_of_devices!(NvmeBuilder, GpuBuilder, NicBuilder, DeviceBuilder);

impl NvmeBuilder {
    /// Returns a controller without namespaces.
    pub fn new(name: &str) -> Self {
        Self(named(name))
    }

    /// Gives it a Controller Memory Buffer of a size such as `64M`.
    pub fn cmb(self, size: &str) -> Self {
        self.key("cmb", size)
    }

    /// Adds a namespace of zeroed memory that is gone with the run.
    pub fn ram(self, size: &str) -> Self {
        self.namespace([("ram", size.to_owned())])
    }

    /// Adds a namespace in an image, which is made with this size if it is not there.
    pub fn image(self, file: &Path, size: &str) -> Self {
        let file = file.to_string_lossy().into_owned();
        self.namespace([("file", file), ("size", size.to_owned())])
    }

    fn namespace<const KEYS: usize>(mut self, keys: [(&str, String); KEYS]) -> Self {
        let keys = keys.map(|(key, value)| (key.to_owned(), Value::from(value)));
        let namespaces = self.0.entry("namespaces");
        if let Value::Array(namespaces) = namespaces.or_insert(Value::Array(Vec::new())) {
            namespaces.push(Value::Table(keys.into_iter().collect()));
        }
        self
    }
}

impl GpuBuilder {
    /// Returns a GPU with memory of a size such as `256M`.
    pub fn new(name: &str, vram: &str) -> Self {
        Self(named(name)).key("vram", vram)
    }
}

impl NicBuilder {
    /// Returns an adapter.
    pub fn new(name: &str) -> Self {
        Self(named(name))
    }
}

impl DeviceBuilder {
    /// Returns a device whose server listens at `socket`.
    pub fn new(name: &str, socket: &Path) -> Self {
        let socket = socket.to_string_lossy().into_owned();
        Self(named(name)).key("socket", socket)
    }

    /// Returns a device whose server is started by these words, in which `{socket}` stands for its
    /// socket.
    pub fn started_by(name: &str, command: &[&str]) -> Self {
        let words: Vec<Value> = command.iter().map(|word| Value::from(*word)).collect();
        Self(named(name)).key("command", words)
    }
}

fn named(name: &str) -> Table {
    Table::from_iter([("name".to_owned(), Value::from(name))])
}

/// Returns the table around `line` of a built text, as `[[nvme]] d0`. A table in a table is part of
/// that.
fn table_at(text: &str, line: usize) -> String {
    let lines: Vec<&str> = text.lines().collect();
    let is_header = |line: &&str| line.starts_with('[');
    let is_outer = |line: &&str| is_header(line) && !line.contains('.');
    let mut before = lines.iter().take(line);
    let Some(start) = before.rposition(is_outer) else {
        return "at the top".to_owned();
    };
    let header = lines.get(start).copied().unwrap_or_default();
    let own = lines.iter().skip(start + 1);
    let mut own = own.take_while(|line| !is_header(line));
    match own.find_map(|line| line.strip_prefix("name = ")) {
        Some(name) => format!("{header} {}", name.trim_matches('"')),
        None => header.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scenario::Namespace;

    #[test]
    fn built_scenario_is_read_as_a_file() {
        let built = ScenarioBuilder::new("built")
            .tools()
            .key("timeout", "2m")
            .iommu(Iommu::Intel)
            .machine("cpus", 1)
            .module("nvme_core", "io_timeout=3")
            .host_bridge("b0")
            .switch("s0")
            .switch_below("s1", "b0")
            .nvme(
                NvmeBuilder::new("d0")
                    .below("s0")
                    .cmb("2M")
                    .ram("1M")
                    .image(Path::new("/x/d0.img"), "2M"),
            )
            .nvme(
                NvmeBuilder::new("d1")
                    .below("b0")
                    .ram("1M")
                    .key("ats", true),
            )
            .gpu(
                GpuBuilder::new("g0", "64M")
                    .below("s1")
                    .key("link", "redirect"),
            )
            .nic(NicBuilder::new("n0").below("s1"))
            .build()
            .unwrap();
        assert!(built.tools && built.interactive);
        assert_eq!(built.modules[0].parameters, "io_timeout=3");
        let image = Namespace::File {
            path: "/x/d0.img".into(),
            create: Some(2 << 20),
        };
        assert_eq!(built.nvmes[0].namespaces, [Namespace::Ram(1 << 20), image]);
        assert_eq!((built.machine.iommu, built.machine.cpus), (Iommu::Intel, 1));
        let names: Vec<&str> = built.devices().map(|device| device.name()).collect();
        assert_eq!(names, ["d0", "d1", "g0", "n0"]);
        assert_eq!(
            built
                .nvmes
                .iter()
                .map(|n| n.namespaces.len())
                .sum::<usize>(),
            3
        );
        assert_eq!(
            built.gpus.iter().map(|gpu| gpu.attach.switch()).next(),
            Some(Some("s1"))
        );
    }

    #[test]
    fn built_guests_have_what_was_added_after_them() {
        let group = ScenarioBuilder::new("two")
            .tools()
            .impair("n0<->n1 loss=1%")
            .guest("left")
            .switch("s0")
            .nic(NicBuilder::new("n0").below("s0"))
            .guest("right")
            .nic(NicBuilder::new("n1"))
            .build_group()
            .unwrap()
            .unwrap();
        let devices = |guest: usize| group.guests[guest].scenario.nics[0].name.as_str();
        assert_eq!((devices(0), devices(1)), ("n0", "n1"));
        assert_eq!(group.guests[0].scenario.switches.len(), 1);
        assert_eq!(group.fabric.unwrap().impairments, ["n0<->n1 loss=1%"]);
    }

    #[test]
    fn mistake_in_a_built_scenario_is_named() {
        let disk = NvmeBuilder::new("d0").below("s0").ram("1M");
        let refused = |builder: ScenarioBuilder| builder.build().unwrap_err().to_string();
        assert_eq!(
            refused(ScenarioBuilder::new("x").nvme(disk)),
            "scenario `x`, [[nvme]] d0: no [[switch]] or [[host-bridge]] is named `s0`: declare it, or leave `below` out"
        );
        let none = ScenarioBuilder::new("x").nvme(NvmeBuilder::new("d1").ram("0"));
        let none = refused(none);
        assert!(none.starts_with("scenario `x`, [[nvme]] d1: "), "{none}");
        let empty = refused(ScenarioBuilder::new("x"));
        let expected = "scenario `x`, at the top: no device: ";
        assert!(empty.starts_with(expected), "{empty}");
        let disk = NvmeBuilder::new("d0").ram("1M");
        let machine = ScenarioBuilder::new("x").machine("memory", "1M");
        let machine = refused(machine.nvme(disk));
        assert!(
            machine.starts_with("scenario `x`, [machine]: "),
            "{machine}"
        );
    }
}
