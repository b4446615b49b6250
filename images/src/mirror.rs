//! The Debian archive to use: that of this machine's apt.

use std::env;
use std::process::{Command, Stdio};

/// The fields of an index target that [`choose`] reads, for `apt-get indextargets --format`.
const FORMAT: &str = "$(REPO_URI)|$(RELEASE)|$(COMPONENT)|$(ORIGIN)|$(LABEL)";

/// If apt has never run, it knows neither origin nor label of its archives; these names are used
/// only by Debian.
const DEBIAN_RELEASES: &[&str] = &["bookworm", "oldstable", "stable", "trixie"];

/// Returns the URL of a Debian archive: `$PEERBAR_MIRROR`, otherwise that of the host's apt,
/// otherwise `None`, which leaves the choice to mmdebstrap.
pub(crate) fn find() -> Option<String> {
    if let Some(mirror) = env::var("PEERBAR_MIRROR")
        .ok()
        .filter(|mirror| !mirror.is_empty())
    {
        return Some(mirror);
    }
    let targets = Command::new("apt-get")
        .args(["indextargets", "--format", FORMAT, "Created-By: Packages"])
        .stdin(Stdio::null())
        .output()
        .ok()?;
    choose(&String::from_utf8_lossy(&targets.stdout))
}

/// Returns the archive with a main suite of Debian, not one of updates, backports or security
/// fixes.
fn choose(targets: &str) -> Option<String> {
    targets.lines().find_map(|line| {
        let mut fields = line.split('|');
        let (uri, release, component) = (fields.next()?, fields.next()?, fields.next()?);
        let known = |field: Option<&str>| {
            field
                .filter(|text| !text.is_empty() && !text.starts_with('$'))
                .map(str::to_owned)
        };
        let (origin, label) = (known(fields.next()), known(fields.next()));
        let is_debian = match (origin.as_deref(), label.as_deref()) {
            (Some(origin), Some(label)) => origin == "Debian" && label == "Debian",
            _ => DEBIAN_RELEASES.contains(&release),
        };
        let is_main_suite = !release.contains(['-', '/']);
        (is_debian && is_main_suite && component == "main" && !uri.is_empty())
            .then(|| uri.to_owned())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn main_suite_of_debian_is_chosen() {
        let targets = "http://a.example/debian-security/|bookworm-security|main|Debian|Debian-Security\n\
                       http://b.example/vendor/|stable|main|Vendor|Vendor\n\
                       http://c.example/debian/|bookworm-updates|main|Debian|Debian\n\
                       http://d.example/debian/|bookworm|contrib|Debian|Debian\n\
                       http://e.example/debian/|bookworm|main|Debian|Debian\n";
        assert_eq!(choose(targets).as_deref(), Some("http://e.example/debian/"));
    }

    #[test]
    fn apt_without_lists_is_understood() {
        let targets = "http://a.example/debian-security/|trixie-security|main|$(ORIGIN)|$(LABEL)\n\
                       http://b.example/ubuntu/|noble|main|$(ORIGIN)|$(LABEL)\n\
                       http://c.example/debian/|trixie|main|$(ORIGIN)|$(LABEL)\n";
        assert_eq!(choose(targets).as_deref(), Some("http://c.example/debian/"));
    }

    #[test]
    fn another_distribution_has_no_mirror() {
        assert_eq!(
            choose("http://a.example/ubuntu/|noble|main|Ubuntu|Ubuntu\n"),
            None
        );
        assert_eq!(choose("\nnonsense\n"), None);
    }
}
