//! Checks that use a part that an earlier check has lost.

use std::ops::Range;

use peerbar_report::Check;

use super::error::Problem;

/// The name of the fabric's server.
const FABRIC: &str = "fabric";

/// Rejects a check that uses a device, or the fabric, whose server an earlier check kills. `spans`
/// has the place of each in the file.
pub(super) fn refuse(checks: &[Check], spans: &[Range<usize>]) -> Result<(), Problem> {
    for (number, (check, at)) in checks.iter().zip(spans).enumerate() {
        let earlier = checks.iter().take(number).filter_map(Check::kills);
        for lost in earlier {
            if uses(check, lost) {
                let message = format!(
                    "the check uses `{lost}`, which a check before it loses: move it before that one, or name another"
                );
                return Err(Problem::new(at.clone(), message));
            }
        }
    }
    Ok(())
}

/// Rejects the check of one guest of several that loses the fabric, because all guests share it.
/// `spans` has the place of each in the file.
pub(super) fn refuse_shared(checks: &[Check], spans: &[Range<usize>]) -> Result<(), Problem> {
    let mut checks = checks.iter().zip(spans);
    match checks.find(|(check, _)| check.kills() == Some(FABRIC)) {
        Some((_, at)) => Err(Problem::new(
            at.clone(),
            "`loses = \"fabric\"`: the fabric belongs to all guests: leave out `guest`, and name a `peer` of another guest",
        )),
        None => Ok(()),
    }
}

fn uses(check: &Check, lost: &str) -> bool {
    let is_between = match check {
        Check::Rdma(check) => check.nic != check.peer,
        Check::RdmaRefused(check) => check.nic != check.asked(),
        Check::RdmaChain(_) | Check::RdmaLost(_) => true,
        _ => false,
    };
    if lost == FABRIC {
        return is_between;
    }
    check.mentions(lost)
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use crate::scenario::Scenario;

    /// Two adapters and a GPU, and checks after them.
    fn parse(checks: &str) -> Result<(), String> {
        let text = format!(
            "name = \"x\"\ntools = true\n[[gpu]]\nname = \"g\"\n[[nic]]\nname = \"a\"\n[[nic]]\nname = \"b\"\n[[nic]]\nname = \"c\"\n{checks}"
        );
        let parsed = Scenario::parse(Path::new("x.toml"), text);
        parsed.map(drop).map_err(|error| error.to_string())
    }

    fn lost(peer: &str, name: &str) -> String {
        format!(
            "[[check]]\nkind = \"rdma-lost\"\nnic = \"a\"\npeer = \"{peer}\"\nfrom = {{ vram = \"g\" }}\nto = \"guest-ram\"\nloses = \"{name}\"\n"
        )
    }

    fn transfer(nic: &str, peer: &str) -> String {
        format!(
            "[[check]]\nkind = \"rdma\"\nnic = \"{nic}\"\npeer = \"{peer}\"\nfrom = \"guest-ram\"\nto = \"guest-ram\"\nsizes = [1]\n"
        )
    }

    #[test]
    fn check_that_uses_a_lost_device_is_refused() {
        let command = "[[check]]\nkind = \"command\"\nrun = \"ibv_devinfo -d {c}\"\n";
        for (name, later, device) in [
            ("c", lost("c", "c"), "c"),
            ("c", transfer("c", "a"), "c"),
            ("c", command.to_owned(), "c"),
            ("g", lost("b", "fabric"), "g"),
            ("fabric", transfer("a", "b"), "fabric"),
            ("fabric", lost("b", "g"), "fabric"),
        ] {
            let error = parse(&[lost("c", name), later].concat()).unwrap_err();
            let wanted =
                format!("x.toml:19: the check uses `{device}`, which a check before it loses");
            assert!(error.starts_with(&wanted), "{error}");
        }
    }

    #[test]
    fn memory_that_dies_is_of_one_side() {
        let both = |name: &str| lost("b", name).replace("\"guest-ram\"", "{ vram = \"g\" }");
        let error = parse(&both("g")).unwrap_err();
        let wanted = "x.toml:17: `from` and `to` are both of `g`";
        assert!(error.starts_with(wanted), "{error}");
        parse(&both("b")).unwrap();
    }

    #[test]
    fn check_of_what_is_left_is_taken() {
        let text = "[[check]]\nkind = \"command\"\nrun = \"true\"\nexpect = [\"c\"]\n";
        for (name, later) in [
            ("c", lost("b", "b")),
            ("c", transfer("a", "b")),
            ("c", text.to_owned()),
            ("fabric", transfer("a", "a")),
        ] {
            parse(&[lost("c", name), later].concat()).unwrap();
        }
        parse(&[transfer("c", "a"), lost("c", "c")].concat()).unwrap();
    }
}
