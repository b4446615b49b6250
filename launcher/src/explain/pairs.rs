//! Which pairs of a provider and a client there are, in a scenario and in a check.

use peerbar_report::{Buffer, Check};

use peerbar_lab::scenario::{DeviceSpec, Scenario};

/// Whose memory, and whose DMA.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Pair {
    /// The device with the memory.
    pub provider: String,
    /// The device with the DMA.
    pub client: String,
}

impl Pair {
    /// The pair of these two.
    pub(crate) fn of(provider: &str, client: &str) -> Self {
        Self {
            provider: provider.to_owned(),
            client: client.to_owned(),
        }
    }

    /// Whether `name` is one of both.
    pub(crate) fn has(&self, name: &str) -> bool {
        self.provider == name || self.client == name
    }
}

/// All pairs of `scenario`: of each device with memory for others, its own use of it among them where it has one.
pub(crate) fn all(scenario: &Scenario) -> Vec<Pair> {
    let provides = |device: &DeviceSpec<'_>| match device {
        DeviceSpec::Nvme(nvme) => nvme.cmb.is_some(),
        DeviceSpec::Gpu(gpu, _) => !gpu.window,
    };
    // A GPU's own memory is no p2pmem to itself: it is addressed without the kernel.
    let uses = |provider: DeviceSpec<'_>, client: DeviceSpec<'_>| {
        provider.name() != client.name() || matches!(client, DeviceSpec::Nvme(_))
    };
    let mut pairs = Vec::new();
    for provider in scenario.devices().filter(provides) {
        let clients = scenario.devices().filter(|client| uses(provider, *client));
        pairs.extend(clients.map(|client| Pair::of(provider.name(), client.name())));
    }
    pairs
}

/// The pairs whose memory and DMA `check` is about; none if it moves nothing from peer to peer.
pub(crate) fn of_check(check: &Check) -> Vec<Pair> {
    let one = |provider: &str, client: &str| vec![Pair::of(provider, client)];
    match check {
        Check::Copy(copy) => match &copy.through {
            Buffer::P2pmem(provider) => {
                vec![Pair::of(provider, &copy.from), Pair::of(provider, &copy.to)]
            }
            Buffer::GuestRam => Vec::new(),
        },
        Check::GpuFile(file) if !file.bounce => {
            let disks = file.disks.iter();
            disks.map(|disk| Pair::of(&file.gpu, disk)).collect()
        }
        Check::GpuCopy(copy) => match &copy.with {
            Buffer::P2pmem(provider) => one(provider, &copy.gpu),
            Buffer::GuestRam => Vec::new(),
        },
        Check::Probe(probe) => one(&probe.provider, &probe.client),
        Check::GpuUnaligned { gpu, disk }
        | Check::GpuBatch { gpu, disk }
        | Check::GpuRefused { gpu, disk }
        | Check::GpuPins { gpu, disk }
        | Check::GpuLifetimes { gpu, disk }
        | Check::GpuUnload { gpu, disk } => one(gpu, disk),
        Check::GpuCompute { gpu, from, to } => vec![Pair::of(gpu, from), Pair::of(gpu, to)],
        Check::Command(command) => of_line(&command.run),
        _ => Vec::new(),
    }
}

/// The pairs of a command's line: each p2pmem that it names, and each disk.
fn of_line(line: &str) -> Vec<Pair> {
    let words = || line.split('{').filter_map(|rest| rest.split_once('}'));
    let named = |what: &'static str| words().filter_map(move |(word, _)| word.strip_suffix(what));
    let mut pairs = Vec::new();
    for provider in named(":p2pmem") {
        for client in named(":disk") {
            let pair = Pair::of(provider, client);
            if !pairs.contains(&pair) {
                pairs.push(pair);
            }
        }
    }
    pairs
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_demo_s_pairs_are_those_of_its_providers() {
        let demo = Scenario::demo().unwrap();
        let pairs = all(&demo);
        let expected = [
            ("disk0", "disk0"),
            ("disk0", "disk1"),
            ("disk0", "gpu0"),
            ("gpu0", "disk0"),
            ("gpu0", "disk1"),
        ];
        assert_eq!(
            pairs,
            expected.map(|(provider, client)| Pair::of(provider, client))
        );
    }

    #[test]
    fn a_copy_has_two_clients_and_its_control_none() {
        let check = |through: &str| -> Check {
            let text = format!(
                r#"{{"kind":"copy","from":"a","to":"b","through":{through},"sizes":[4096],"offsets":[0]}}"#
            );
            serde_json::from_str(&text).unwrap()
        };
        let pairs = of_check(&check(r#"{"p2pmem":"c"}"#));
        assert_eq!(pairs, [Pair::of("c", "a"), Pair::of("c", "b")]);
        assert_eq!(of_check(&check(r#""guest-ram""#)), []);
    }

    #[test]
    fn a_command_is_about_the_memory_and_the_disks_that_it_names() {
        let line = "f() { fio --filename=$1 --iomem=mmapshared:{a:p2pmem}; }; f {b:disk} && f {c:disk} && f {b:disk}";
        assert_eq!(of_line(line), [Pair::of("a", "b"), Pair::of("a", "c")]);
        assert_eq!(of_line("nvme list {b} {b:disk} ${c} {"), []);
    }
}
