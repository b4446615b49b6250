//! Placeholders for devices in the words of a command, such as `{disk0}` and `{disk0:pci}`.
//!
//! A placeholder is a name in braces, or a name and a part with a colon in between. `${NAME}`
//! belongs to the shell and is left alone. Doubled braces are an escape: `{{NAME}}` becomes
//! `{NAME}`.

/// Start of the part that refers to a namespace, before its NSID.
const NAMESPACE: &str = "ns";

/// Returns `text` with the value of each placeholder in its place. `value` gets the text between
/// the braces, `disk0:pci`.
///
/// # Errors
/// The first error of `value`.
pub fn fill_in<E>(
    text: &str,
    mut value: impl FnMut(&str) -> Result<String, E>,
) -> Result<String, E> {
    let mut filled = String::with_capacity(text.len());
    let mut rest = text;
    while let Some((before, after)) = rest.split_once('{') {
        filled.push_str(before);
        let is_shells = before.ends_with('$');
        rest = match doubled(after) {
            Some((key, rest)) => {
                filled.push_str(&format!("{{{key}}}"));
                rest
            }
            None => match single(after).filter(|_| !is_shells) {
                Some((key, rest)) => {
                    filled.push_str(&value(key)?);
                    rest
                }
                None => {
                    filled.push('{');
                    after
                }
            },
        };
    }
    filled.push_str(rest);
    Ok(filled)
}

/// Returns the text between the braces of each placeholder of `text`.
pub(crate) fn keys(text: &str) -> Vec<String> {
    let mut keys = Vec::new();
    let collected: Result<String, std::convert::Infallible> = fill_in(text, |key| {
        keys.push(key.to_owned());
        Ok(String::new())
    });
    let Ok(_) = collected;
    keys
}

/// Returns the device of a placeholder for one of its block devices: `disk0` of `disk0:disk` and
/// `disk0:ns2`.
pub(crate) fn disk_of(key: &str) -> Option<&str> {
    let (device, part) = key.split_once(':')?;
    let is_namespace = part
        .strip_prefix(NAMESPACE)
        .is_some_and(|number| number.parse::<u32>().is_ok());
    (part == "disk" || is_namespace).then_some(device)
}

/// Returns the placeholders of a disk with `namespaces` namespaces, including its p2pmem if it
/// `provides` some.
pub(crate) fn of_disk(name: &str, namespaces: u32, provides: bool) -> Vec<String> {
    let mut keys = vec![
        name.to_owned(),
        format!("{name}:disk"),
        format!("{name}:pci"),
    ];
    keys.extend((1..=namespaces).map(|nsid| format!("{name}:{NAMESPACE}{nsid}")));
    keys.extend(provides.then(|| format!("{name}:p2pmem")));
    keys
}

/// Returns the placeholders of a GPU, including its p2pmem if it `provides` some.
pub(crate) fn of_gpu(name: &str, provides: bool) -> Vec<String> {
    let mut keys = vec![name.to_owned(), format!("{name}:pci")];
    keys.extend(provides.then(|| format!("{name}:p2pmem")));
    keys
}

/// Returns the placeholders of an RDMA network adapter.
pub(crate) fn of_nic(name: &str) -> Vec<String> {
    vec![
        name.to_owned(),
        format!("{name}:pci"),
        format!("{name}:verbs"),
    ]
}

/// Returns the placeholders of a PCI function that no driver of a known kind has.
pub(crate) fn of_function(name: &str) -> Vec<String> {
    vec![format!("{name}:pci")]
}

/// Explains that `key` is not one of the `known` placeholders, and what to write.
pub fn unknown_placeholder<'a>(key: &str, known: impl Iterator<Item = &'a str>) -> String {
    let device = |key: &str| key.split(':').next().unwrap_or_default().to_owned();
    let known: Vec<&str> = known.collect();
    let of_device: Vec<&&str> = known
        .iter()
        .filter(|known| device(known) == device(key))
        .collect();
    let shown: Vec<String> = match of_device.as_slice() {
        [] => known
            .iter()
            .filter(|known| !known.contains(':'))
            .map(|known| format!("{{{known}}}"))
            .collect(),
        of_device => of_device
            .iter()
            .map(|known| format!("{{{known}}}"))
            .collect(),
    };
    let there = match shown.as_slice() {
        [] => "none".to_owned(),
        shown => shown.join(", "),
    };
    format!(
        "unknown placeholder `{{{key}}}` (known: {there}); double the braces of other text, `{{{{{key}}}}}`"
    )
}

/// Returns the placeholder at the start of `text`, after its brace, and the rest.
fn single(text: &str) -> Option<(&str, &str)> {
    let (key, rest) = text.split_once('}')?;
    let (name, part) = match key.split_once(':') {
        Some((name, part)) => (name, Some(part)),
        None => (key, None),
    };
    let is_name = name.starts_with(|first: char| first.is_ascii_alphabetic())
        && name
            .bytes()
            .all(|byte| byte.is_ascii_alphanumeric() || byte == b'-' || byte == b'_');
    let is_part = part.is_none_or(|part| {
        !part.is_empty()
            && part
                .bytes()
                .all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit())
    });
    (is_name && is_part).then_some((key, rest))
}

/// Returns the same for doubled braces.
fn doubled(text: &str) -> Option<(&str, &str)> {
    let (key, rest) = single(text.strip_prefix('{')?)?;
    Some((key, rest.strip_prefix('}')?))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn filled(text: &str) -> String {
        let value = |key: &str| match key {
            "disk0" => Ok("/dev/nvme0".to_owned()),
            "disk0:ns2" => Ok("/dev/nvme0n2".to_owned()),
            other => Err(other.to_owned()),
        };
        fill_in(text, value).unwrap_or_else(|key| format!("no {key}"))
    }

    #[test]
    fn placeholder_is_replaced_wherever_it_stands() {
        assert_eq!(
            filled("a={disk0},b={disk0:ns2}{disk0}"),
            "a=/dev/nvme0,b=/dev/nvme0n2/dev/nvme0"
        );
        assert_eq!(filled("nvme list {disk1:disk}"), "no disk1:disk");
    }

    #[test]
    fn braces_of_a_shell_stay() {
        for text in [
            "${HOME} ${x:-y}",
            "f() { true; }",
            "awk '{ print }'",
            "{}",
            "{1..3}",
            "{a,b}",
            "{disk0:}",
            "{Disk 0}",
            "{",
            "}{",
        ] {
            assert_eq!(filled(text), text);
        }
        assert_eq!(filled("awk '{{print}}' ${disk0}"), "awk '{print}' ${disk0}");
        assert_eq!(filled("awk '{print}'"), "no print");
    }

    #[test]
    fn unknown_placeholder_names_those_that_there_are() {
        let known = of_disk("disk0", 2, true);
        let known = known.iter().map(String::as_str);
        assert_eq!(
            unknown_placeholder("disk0:ns3", known.clone()),
            "unknown placeholder `{disk0:ns3}` (known: {disk0}, {disk0:disk}, {disk0:pci}, {disk0:ns1}, {disk0:ns2}, \
             {disk0:p2pmem}); double the braces of other text, `{{disk0:ns3}}`"
        );
        let other = unknown_placeholder("print", known);
        assert!(
            other.starts_with("unknown placeholder `{print}` (known: {disk0});"),
            "{other}"
        );
    }

    #[test]
    fn only_block_devices_are_disks() {
        assert_eq!(disk_of("disk0:disk"), Some("disk0"));
        assert_eq!(disk_of("disk0:ns12"), Some("disk0"));
        for other in ["disk0", "disk0:pci", "disk0:nsx", "disk0:p2pmem"] {
            assert_eq!(disk_of(other), None, "{other}");
        }
    }
}
