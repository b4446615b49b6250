//! What QEMU's own NVMe controller does not have.

use std::ops::Range;

use toml::Spanned;

use super::error::Problem;
use super::file::NvmeTable;

/// Checks that `table` asks of QEMU's controller only what its command line has options for.
pub(super) fn check(table: &NvmeTable) -> Result<(), Problem> {
    let keys = [
        ("link", span(&table.link)),
        ("link-latency", span(&table.link_latency)),
        ("link-bandwidth", span(&table.link_bandwidth)),
        ("ats", span(&table.ats)),
        ("cmb-queues", span(&table.cmb_queues)),
        ("cmb-legacy", span(&table.cmb_legacy)),
        ("pmr", span(&table.pmr)),
        ("block-size", span(&table.block_size)),
        ("mdts", span(&table.mdts)),
        ("spare-queues", span(&table.spare_queues)),
        ("workers", span(&table.workers)),
        ("poll", span(&table.poll)),
        ("seed-fault", table.seed_fault.first().map(Spanned::span)),
        ("faults", table.faults.first().map(Spanned::span)),
    ];
    for (key, span) in keys {
        if let Some(at) = span {
            let message = format!(
                "QEMU's own controller has no `{key}`: leave it out, or leave `model = \"qemu\"` out"
            );
            return Err(Problem::new(at, message));
        }
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
        let error = parse("namespaces = [{ ram = \"1M\" }, { ram = \"1M\" }]").unwrap_err();
        assert!(error.contains("gets one namespace here"), "{error}");
    }
}
