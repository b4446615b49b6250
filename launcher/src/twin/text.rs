//! The scenario file of a twin.

use std::collections::BTreeMap;

use peerbar_lab::size::human;
use peerbar_rule::{PortType, Way};

use super::Twin;
use super::devices::{Device, Model};
use super::pairs::{self, TwinPair};
use super::shape::Switch;

/// Memory of each GPU, of each disk's namespace and of each CMB. A probe moves 64 KiB.
const VRAM: &str = "16M";
const NAMESPACE: &str = "16M";
const CMB: &str = "2M";
/// The longest name of a scenario.
const LONGEST: usize = 40;
/// Seconds for the boot, for each device, and for each check, several times as long as they take.
const BOOT_SECONDS: usize = 120;
const DEVICE_SECONDS: usize = 5;
const CHECK_SECONDS: usize = 5;

/// Returns the whole file.
pub(super) fn text(twin: &Twin<'_>) -> String {
    let mut text = hardware(twin);
    text += &verdicts(twin);
    let checked = pairs::checked(twin);
    if let Some(like) = checked.like {
        text += &format!("# Pairs with the same {like} have one check.\n");
    }
    for pair in checked.pairs {
        text += &check(pair);
    }
    text
}

/// Returns the file without verdicts and checks.
pub(super) fn hardware(twin: &Twin<'_>) -> String {
    let shape = &twin.shape;
    let mut text = head(twin);
    for name in &shape.host_bridges {
        text += &format!("[[host-bridge]]\nname = {}\n\n", quoted(name));
    }
    for switch in &shape.switches {
        text += &switch_table(twin, switch);
    }
    for (device, below) in &shape.devices {
        text += &device_table(twin, device, below.as_deref());
    }
    text
}

fn head(twin: &Twin<'_>) -> String {
    let count = twin.shape.devices.len();
    let seconds =
        BOOT_SECONDS + count * DEVICE_SECONDS + pairs::checked(twin).pairs.len() * CHECK_SECONDS;
    let has_nics = twin
        .shape
        .devices
        .iter()
        .any(|(device, _)| device.model == Model::Nic);
    let tools = match has_nics {
        true => "tools = true        # for the adapters' programs\n",
        false => "",
    };
    format!(
        "# The twin of a machine: its devices have the places that they have there, so that a guest's Linux decides on the\n\
         # same pairs. `peerbar run` it; `peerbar explain` then compares the machine, the rule and the guest's kernel.\n\
         # Each [[gpu]] has {VRAM} of memory and each disk {NAMESPACE}, whatever the machine's have.\n\
         {}name = {}\n\
         timeout = \"{}m\"\n\
         {tools}\n\
         [machine]\n\
         cpu = {}\n\
         iommu = {}\n\n",
        host(twin),
        quoted(&name(twin.of)),
        seconds.div_ceil(60),
        quoted(twin.cpu),
        quoted(twin.iommu.word()),
    )
}

/// Returns comments on processor, kernel and parameters of the machine.
fn host(twin: &Twin<'_>) -> String {
    let host = &twin.machine.host;
    let lines = [
        host.processor().map(|cpu| format!("processor: {cpu}")),
        host.release.clone().map(|release| {
            format!(
                "kernel: Linux {release}; `peerbar run --kernel` takes another than peerbar's own"
            )
        }),
        host.command_line
            .clone()
            .filter(|line| !line.is_empty())
            .map(|line| format!("kernel parameters: {line}")),
    ];
    lines
        .into_iter()
        .flatten()
        .map(|line| format!("# The machine's {}\n", in_comment(&line)))
        .collect()
}

/// Returns `text` with `-` in the place of characters that a name may not have.
pub(super) fn in_name(text: &str) -> String {
    text.replace(|c: char| !c.is_ascii_alphanumeric() && c != '_', "-")
}

/// Returns a name for the scenario after that of a file.
fn name(of: &str) -> String {
    let stem = std::path::Path::new(of).file_stem();
    let stem = stem
        .map(|stem| stem.to_string_lossy().into_owned())
        .unwrap_or_default();
    let name: String = in_name(&format!("twin-{stem}"))
        .chars()
        .take(LONGEST)
        .collect();
    name.trim_end_matches('-').to_owned()
}

fn switch_table(twin: &Twin<'_>, switch: &Switch) -> String {
    let at = twin.machine.function(switch.at);
    let is_port = at.is_some_and(|at| at.port_type == Some(PortType::DownstreamPort));
    let part = if is_port { "a port of a switch: " } else { "" };
    let mut text = format!(
        "[[switch]]                  # {part}{}\nname = {}\n",
        about(twin, switch.at),
        quoted(&switch.name)
    );
    text += &below(switch.below.as_deref());
    let redirected: Vec<String> = switch.redirected.iter().map(|name| quoted(name)).collect();
    text += &match redirected.len() {
        0 => String::new(),
        all if all == switch.devices.len() => "acs = true\n".to_owned(),
        _ => format!("acs = [{}]\n", redirected.join(", ")),
    };
    text + "\n"
}

fn device_table(twin: &Twin<'_>, device: &Device, above: Option<&str>) -> String {
    let heading = format!("[[{}]]", device.model.table());
    let mut text = format!(
        "{heading:28}# {}\nname = {}\n",
        about(twin, device.address),
        quoted(&device.name)
    );
    text += &below(above);
    text += &match device.model {
        Model::Nvme if device.is_provider => {
            format!("cmb = \"{CMB}\"\nnamespaces = [{{ ram = \"{NAMESPACE}\" }}]\n")
        }
        Model::Nvme => format!("namespaces = [{{ ram = \"{NAMESPACE}\" }}]\n"),
        Model::Gpu => format!("vram = \"{VRAM}\"\n"),
        Model::Nic => String::new(),
    };
    text + "\n"
}

fn below(above: Option<&str>) -> String {
    above.map_or(String::new(), |above| {
        format!("below = {}\n", quoted(above))
    })
}

/// Returns address, description and memory of a function of the machine.
fn about(twin: &Twin<'_>, address: peerbar_p2p::Address) -> String {
    let function = twin.machine.function(address);
    let description = function
        .map(|function| function.description.clone())
        .unwrap_or_default();
    let provider = function.filter(|function| function.is_provider());
    let memory = provider.and_then(|function| function.provider_bar()?.size);
    let memory = memory.map_or(String::new(), |bytes| {
        format!(", {} of memory", human(bytes))
    });
    in_comment(&format!("{address} {description}{memory}"))
}

/// Returns `text` without line breaks, which would end a comment.
fn in_comment(text: &str) -> String {
    text.trim_end().replace(char::is_control, " ")
}

fn check(pair: &TwinPair) -> String {
    let expected = match Way::from(pair.twin) {
        Way::BusAddress => "peer",
        Way::ThroughHostBridge => "host-bridge",
        Way::NotSupported => "refused",
    };
    let by = match pair.client_model {
        Model::Nic => "by = \"verbs\"\n",
        Model::Nvme | Model::Gpu => "",
    };
    format!(
        "[[check]]\nkind = \"probe\"\nprovider = {}\nclient = {}\n{by}expect = \"{expected}\"\n\n",
        quoted(&pair.provider),
        quoted(&pair.client)
    )
}

/// Returns the table with the machine's verdicts and the differences.
fn verdicts(twin: &Twin<'_>) -> String {
    let differences: String = twin
        .differences
        .iter()
        .map(|text| format!("    {},\n", quoted(text)))
        .collect();
    let mut text = format!(
        "# What `peerbar p2p` says about the machine, and what the twin does not imitate.\n\
         [twin]\nof = {}\ndifferences = [\n{differences}]\n\n[twin.verdicts]\n",
        quoted(twin.of)
    );
    let mut providers: BTreeMap<&str, BTreeMap<&str, Vec<String>>> = BTreeMap::new();
    for pair in &twin.pairs {
        let verdicts = providers.entry(&pair.provider).or_default();
        verdicts
            .entry(key(pair.machine))
            .or_default()
            .push(quoted(&pair.client));
    }
    for (provider, verdicts) in providers {
        let lists = verdicts
            .iter()
            .map(|(key, clients)| format!("{key} = [{}]", clients.join(", ")));
        let lists: Vec<String> = lists.collect();
        text += &format!("{provider} = {{ {} }}\n", lists.join(", "));
    }
    text + "\n" + &conditional(twin)
}

/// Returns the table of the pairs on which the machine's verdict is conditional, if there are any.
fn conditional(twin: &Twin<'_>) -> String {
    let mut providers: BTreeMap<&str, Vec<String>> = BTreeMap::new();
    for pair in twin.pairs.iter().filter(|pair| pair.is_conditional) {
        let clients = providers.entry(&pair.provider).or_default();
        clients.push(quoted(&pair.client));
    }
    if providers.is_empty() {
        return String::new();
    }
    let lines = providers
        .iter()
        .map(|(provider, clients)| format!("{provider} = [{}]\n", clients.join(", ")));
    let lines: String = lines.collect();
    format!(
        "# The source lacks facts on which these verdicts depend.\n[twin.conditional]\n{lines}\n"
    )
}

fn key(verdict: Way) -> &'static str {
    match verdict {
        Way::BusAddress => "bus-address",
        Way::ThroughHostBridge => "through-host-bridge",
        Way::NotSupported => "not-supported",
    }
}

fn quoted(text: &str) -> String {
    toml::Value::String(text.to_owned()).to_string()
}
