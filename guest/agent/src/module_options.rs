//! Parameters of modules on the kernel's command line, `nvme.io_timeout=3`. The kernel sets those
//! of its built-in modules. The program that loads a module must pass its parameters (Linux,
//! Documentation/admin-guide/kernel-parameters.rst).

/// Returns the parameters that a kernel's command line has for `module`, as finit_module(2) takes
/// them. Quotes stay around values with spaces. Words after `--` are for init.
pub(crate) fn of(command_line: &str, module: &str) -> String {
    let words = words(command_line);
    let words = words.iter().map(String::as_str);
    let parameters = words.take_while(|word| *word != "--").filter_map(|word| {
        let (name, parameter) = word.split_once('.')?;
        (normal(name) == normal(module)).then_some(parameter)
    });
    parameters.collect::<Vec<_>>().join(" ")
}

/// Returns the words of a command line. Spaces in double quotes do not separate words; quotes
/// around a whole word are moved to its value.
fn words(command_line: &str) -> Vec<String> {
    let mut quoted = false;
    let words = command_line.trim().split(|letter: char| {
        quoted ^= letter == '"';
        letter.is_whitespace() && !quoted
    });
    let words = words.filter(|word| !word.is_empty()).map(|word| {
        let whole = word.strip_prefix('"');
        let whole = whole.and_then(|word| word.strip_suffix('"').unwrap_or(word).split_once('='));
        whole.map_or_else(
            || word.to_owned(),
            |(name, value)| format!("{name}=\"{value}\""),
        )
    });
    words.collect()
}

/// Returns a module's name with `_` in place of `-`, which the kernel treats as equal.
pub(crate) fn normal(name: &str) -> String {
    name.replace('-', "_")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parameters_of_the_module_are_taken_in_their_order() {
        let line =
            "console=ttyS0 nvme.io_timeout=3 nvme-core.admin_timeout=9 nvme.poll_queues=1 nvme\n";
        assert_eq!(of(line, "nvme"), "io_timeout=3 poll_queues=1");
        assert_eq!(of(line, "nvme_core"), "admin_timeout=9");
        assert_eq!(of(line, "9p"), "");
    }

    #[test]
    fn dashes_and_underscores_of_a_name_are_one() {
        let line = "virtio-iommu.a=1 virtio_iommu.b_c=2 virtio-iommu.d-e";
        for name in ["virtio-iommu", "virtio_iommu"] {
            assert_eq!(of(line, name), "a=1 b_c=2 d-e");
        }
    }

    #[test]
    fn quotes_keep_spaces_in_a_value() {
        let line = r#"dyndbg="module nvme.x +p" nvme.dyndbg="func a +p; func b +l" "nvme.name=a b" nvme.c=1"#;
        let expected = r#"dyndbg="func a +p; func b +l" name="a b" c=1"#;
        assert_eq!(of(line, "nvme"), expected);
    }

    #[test]
    fn arguments_of_init_are_no_parameters() {
        assert_eq!(of("nvme.a=1 -- nvme.b=2", "nvme"), "a=1");
        assert_eq!(of("", "nvme"), "");
        assert_eq!(of("\"", "nvme"), "");
    }
}
