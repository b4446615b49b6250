//! The key `packages`: Debian packages of the guest's root in addition to the default ones.

use peerbar_report::Check;
use toml::Spanned;

use super::error::Problem;

/// Groups of packages by their names: tools that people want when they work in a guest. A gdb with
/// Python takes 20 s to start under emulation.
const GROUPS: &[(&str, &[&str])] = &[(
    "@debug",
    &["gdb-minimal", "iputils-ping", "linux-perf", "tcpdump"],
)];

/// Replaces groups by their packages, and checks the names: at least two of lower case letters,
/// digits, `+`, `-` and `.`, first a letter or digit (Debian Policy 4.7, 5.6.7).
pub(super) fn packages(names: Vec<Spanned<String>>) -> Result<Vec<String>, Problem> {
    let mut packages: Vec<String> = Vec::new();
    for name in names {
        let at = name.span();
        let name = name.into_inner();
        if name.starts_with('@') {
            let group = group(&name).map_err(|message| Problem::new(at, message))?;
            add(&mut packages, group.iter().copied());
            continue;
        }
        let is_letter = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit();
        let fits = |byte: u8| is_letter(byte) || matches!(byte, b'+' | b'-' | b'.');
        if name.len() < 2
            || !name.starts_with(|first| u8::try_from(first).is_ok_and(is_letter))
            || !name.bytes().all(fits)
        {
            let message = format!(
                "`packages`: invalid package name `{name}`: expected two or more of lower case letters, digits, `+`, `-` \
                 and `.`, as in `rdma-core`"
            );
            return Err(Problem::new(at, message));
        }
        packages.push(name);
    }
    Ok(packages)
}

/// Returns the packages of a group.
fn group(name: &str) -> Result<&'static [&'static str], String> {
    let found = GROUPS.iter().find(|(known, _)| *known == name);
    found.map(|(_, packages)| *packages).ok_or_else(|| {
        let known: Vec<&str> = GROUPS.iter().map(|(known, _)| *known).collect();
        let known = known.join(", ");
        format!("`packages`: unknown group of packages `{name}`: there is {known}")
    })
}

/// Adds those that checks need and the scenario does not name.
pub(super) fn add_needed(packages: &mut Vec<String>, checks: &[Check]) {
    add(packages, checks.iter().flat_map(Check::packages).copied());
}

/// Adds those of `names` that are not among them.
pub(super) fn add<'a>(packages: &mut Vec<String>, names: impl Iterator<Item = &'a str>) {
    for name in names {
        if !packages.iter().any(|known| known == name) {
            packages.push(name.to_owned());
        }
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use crate::scenario::Scenario;

    fn parse(top: &str, check: &str) -> Result<Scenario, String> {
        let text = format!(
            "name = \"x\"\n{top}\n[[gpu]]\nname = \"g0\"\nvram = \"64M\"\n[[nic]]\nname = \"n0\"\n[[check]]\n{check}\n"
        );
        Scenario::parse(Path::new("x.toml"), text).map_err(|error| error.to_string())
    }

    const RDMA: &str = "kind = \"rdma\"\nnic = \"n0\"\nfrom = { vram = \"g0\" }\nto = \"guest-ram\"\nsizes = [\"4K\"]";

    #[test]
    fn rdma_check_brings_packages_program_and_driver() {
        let scenario = parse("packages = [\"perftest\"]", RDMA).unwrap();
        assert_eq!(scenario.packages, ["perftest", "ibverbs-providers"]);
        let files = scenario.guest_files();
        let [program] = &files[..] else {
            panic!("{files:?}")
        };
        assert!(program.guest().ends_with("opt/peerbar/peerbar-verbs"));
        let modules = scenario.initramfs_modules().join(" ");
        assert!(modules.contains("ib_uverbs efa"), "{modules}");
        assert_eq!(scenario.plan().nics[0].name, "n0");
        let named = parse("packages = [\"ibverbs-providers\"]", RDMA).unwrap();
        assert_eq!(named.packages, ["ibverbs-providers"]);
    }

    #[test]
    fn group_stands_for_its_packages() {
        let check = "kind = \"command\"\nrun = \"true\"";
        let scenario = parse("packages = [\"tcpdump\", \"@debug\"]", check).unwrap();
        let expected = ["tcpdump", "gdb-minimal", "iputils-ping", "linux-perf"];
        assert_eq!(scenario.packages, expected);
        let error = parse("packages = [\"@debian\"]", check).unwrap_err();
        let expected = "x.toml:2: `packages`: unknown group of packages `@debian`: there is @debug";
        assert_eq!(error, expected);
    }

    #[test]
    fn rdma_check_mistakes_are_reported_with_their_line() {
        let tools = |lines: &str| parse("tools = true", lines).unwrap_err();
        let error = parse("", RDMA).unwrap_err();
        assert!(error.contains("write `tools = true` at the top"), "{error}");
        for (from, to, wanted) in [
            (
                "nic = \"n0\"",
                "nic = \"g0\"",
                "no [[nic]] is named `g0`: there is `n0`",
            ),
            (
                "vram = \"g0\"",
                "vram = \"n0\"",
                "no [[gpu]] is named `n0`: there is `g0`",
            ),
            ("\"4K\"", "\"2G\"", "`sizes`: 2G is more than 1G"),
            (
                "\"4K\"",
                "\"65M\"",
                "`sizes`: 1 x 65M with a page before and behind each do not fit the aperture of `g0`: it has 64M",
            ),
            (
                "\"guest-ram\"\nsizes = [\"4K\"]",
                "{ vram = \"g0\" }\nsizes = [\"4K\", \"33M\"]",
                "`sizes`: 2 x 33M with a page before and behind each do not fit the aperture of `g0`: it has 64M",
            ),
        ] {
            let error = tools(&RDMA.replace(from, to));
            assert!(error.contains(wanted), "{error}");
        }
    }

    #[test]
    fn buffer_of_an_rdma_end_fits_the_gpu() {
        let sized = |bytes: u64, more: &str| {
            let check = RDMA.replace("\"4K\"", &bytes.to_string());
            let text = format!(
                "name = \"x\"\ntools = true\n[[gpu]]\nname = \"g0\"\n{more}\n[[nic]]\nname = \"n0\"\n[[check]]\n{check}\n"
            );
            let parsed = Scenario::parse(Path::new("x.toml"), text);
            parsed.map(drop).map_err(|error| error.to_string())
        };
        let most = (64 << 20) - 2 * peerbar_rdma_end::MARGIN;
        let small = "vram = \"64M\"";
        assert_eq!(sized(most, small), Ok(()));
        let error = sized(most + 1, small).unwrap_err();
        assert!(error.contains("do not fit the aperture of `g0`"), "{error}");
        // The driver's memory is the p2pmem, unless the aperture is a window.
        let larger = "vram = \"1G\"\naperture = \"256M\"";
        let error = sized(512 << 20, larger).unwrap_err();
        assert!(error.contains("it has 256M"), "{error}");
        let window = format!("{larger}\nmode = \"window\"");
        assert_eq!(sized(512 << 20, &window), Ok(()));
        let error = sized(1 << 30, &window).unwrap_err();
        assert!(
            error.contains("do not fit the VRAM of `g0`: it has 1G"),
            "{error}"
        );
    }

    #[test]
    fn adapter_s_name_is_no_other_device_s() {
        let error = parse("[[nic]]\nname = \"g0\"", RDMA).unwrap_err();
        assert!(error.contains("the name `g0` is taken"), "{error}");
        for server in ["fabric", "vsock"] {
            let error = parse(&format!("[[nic]]\nname = \"{server}\""), RDMA).unwrap_err();
            let wanted = format!("the name `{server}` belongs to a server of peerbar's own");
            assert!(error.contains(&wanted), "{error}");
        }
    }
}
