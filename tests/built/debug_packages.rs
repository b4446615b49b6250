//! The packages of the group `@debug`, in use in a guest with a network.

use std::fs;

use crate::launched::Launched;

const SCENARIO: &str = r#"
name = "debug"
timeout = "5m"
packages = ["@debug"]
machine.network = true

[[nvme]]
name = "disk0"
namespaces = [{ ram = "16M" }]

[[check]]
name = "gdb"
kind = "command"
run = "gdb -batch -ex run -ex 'print $_exitcode' --args true"
expect = ["= 0"]

[[check]]
name = "perf"
kind = "command"
run = "perf stat -e task-clock true"
expect = ["task-clock"]

[[check]]
name = "tcpdump and ping"
kind = "command"
run = """
timeout 60 tcpdump -n -c 1 -i eth0 icmp &
while kill -0 $! 2> /dev/null; do ping -c 1 -W 1 10.0.2.2; done
wait $!
"""
expect = ["10.0.2.15 > 10.0.2.2: ICMP echo request"]
"#;

#[test]
#[ignore = "boots a guest; scripts/test runs it"]
fn debuggers_work_in_a_guest() {
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("debug.toml"), SCENARIO).unwrap();
    let mut run = Launched::start(folder, &["run", "debug.toml"]).unwrap();
    let (code, results, progress) = run.end().unwrap();
    assert_eq!(code, Some(0), "{results}{progress}");
}
