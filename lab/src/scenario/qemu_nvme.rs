//! The features that QEMU's own NVMe controller lacks.

use std::ops::Range;

use peerbar_nvme::Config;
use toml::Spanned;

use super::error::Problem;
use super::file::NvmeTable;
use super::settings::Settings;

/// Checks that a table uses only those features of QEMU's controller for which its command line
/// has options.
pub(super) fn check(table: &NvmeTable, settings: &Settings<Config>) -> Result<(), Problem> {
    let own = [
        ("link", span(&table.link)),
        ("link-latency", span(&table.link_latency)),
        ("link-bandwidth", span(&table.link_bandwidth)),
        ("ats", span(&table.ats)),
        ("pmr", span(&table.pmr)),
        ("faults", table.faults.first().map(Spanned::span)),
    ];
    let own = own.into_iter().filter_map(|(key, at)| Some((key, at?)));
    let others = settings.keys().filter(|(key, _)| *key != "cmb");
    if let Some((key, at)) = own.chain(others).next() {
        let message = match key {
            "sgl" => "QEMU's own controller always accepts SGLs: leave `sgl` out".to_owned(),
            _ => format!(
                "QEMU's own controller has no `{key}`: leave it out, or leave `model = \"qemu\"` out"
            ),
        };
        return Err(Problem::new(at, message));
    }
    if table.namespaces.get_ref().len() > 1 {
        let message = "QEMU's own controller gets one namespace here: leave the others out";
        return Err(Problem::new(table.namespaces.span(), message));
    }
    Ok(())
}

fn span<T>(value: &Option<Spanned<T>>) -> Option<Range<usize>> {
    value.as_ref().map(Spanned::span)
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use crate::scenario::{Model, Scenario};

    fn parse(lines: &str) -> Result<Model, String> {
        let text = format!(
            "name = \"x\"\n[[nvme]]\nname = \"d0\"\nmodel = \"qemu\"\n{lines}\n\
             [[check]]\nkind = \"controller-reset\"\ndevice = \"d0\"\n"
        );
        let parsed = Scenario::parse(Path::new("x.toml"), text);
        let model = parsed.map(|scenario| scenario.nvmes[0].model);
        model.map_err(|error| error.to_string())
    }

    #[test]
    fn a_controller_of_qemu_s_has_fewer_keys() {
        let disk = "namespaces = [{ ram = \"1M\" }]";
        assert_eq!(parse(&format!("cmb = \"16M\"\n{disk}")), Ok(Model::Qemu));
        let error = parse(&format!("{disk}\nmdts = 5")).unwrap_err();
        let expected = "x.toml:6: QEMU's own controller has no `mdts`: leave it out, or leave `model = \"qemu\"` out";
        assert_eq!(error, expected);
        let error = parse(&format!("{disk}\nsgl = true")).unwrap_err();
        assert!(error.contains("always accepts SGLs"), "{error}");
        let error = parse("namespaces = [{ ram = \"1M\" }, { ram = \"1M\" }]").unwrap_err();
        assert!(error.contains("gets one namespace here"), "{error}");
    }
}
