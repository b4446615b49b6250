//! Parts of scenarios: two disks that may transfer from peer to peer, and copies between disks.

/// Returns a scenario of two disks below a switch, `disk0` with a CMB. More tables may follow.
pub(crate) fn two_disks(name: &str, timeout: &str) -> String {
    format!(
        r#"
name = "{name}"
timeout = "{timeout}"

[[switch]]
name = "switch0"

[[nvme]]
name = "disk0"
below = "switch0"
cmb = "16M"
namespaces = [{{ ram = "16M" }}]

[[nvme]]
name = "disk1"
below = "switch0"
namespaces = [{{ ram = "16M" }}]
"#
    )
}

/// Returns a check that copies `size` from one disk to the other, `through` a memory in the syntax
/// of a scenario file.
pub(crate) fn copy(name: &str, disks: [&str; 2], through: &str, size: &str) -> String {
    let [from, to] = disks;
    format!(
        r#"
[[check]]
name = "{name}"
kind = "copy"
from = "{from}"
to = "{to}"
through = {through}
sizes = ["{size}"]
offsets = [0]
"#
    )
}
