//! The RDMA network between the adapters of a scenario.

use peerbar_fabric::{Impairment, UnknownImpairment};
use toml::Spanned;

use super::error::Problem;
use super::file::FabricTable;
use super::nic::Nic;

/// The RDMA network between the adapters: `[fabric]` of a scenario.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RdmaNetwork {
    /// Impairments of packets between them, as rules of `peerbar-fabric`.
    pub impairments: Vec<String>,
    /// This number determines which packets are impaired. `None` means the server's default.
    pub seed: Option<u64>,
}

/// Checks the fabric between `nics`. Two adapters or more have one without a table, too.
pub(super) fn fabric(
    table: Option<Spanned<FabricTable>>,
    nics: &[Nic],
) -> Result<Option<RdmaNetwork>, Problem> {
    let Some(table) = table else {
        return Ok((nics.len() > 1).then(RdmaNetwork::default));
    };
    if nics.is_empty() {
        let message = "a fabric joins adapters: add a [[nic]], or leave [fabric] out";
        return Err(Problem::new(table.span(), message));
    }
    let table = table.into_inner();
    let rules = table.impair.into_iter().map(|text| rule(text, nics));
    Ok(Some(RdmaNetwork {
        impairments: rules.collect::<Result<_, _>>()?,
        seed: table.seed,
    }))
}

/// Returns a rule about adapters of `nics`.
fn rule(text: Spanned<String>, nics: &[Nic]) -> Result<String, Problem> {
    let parsed = text.get_ref().parse::<Impairment>();
    parsed.map_err(|error: UnknownImpairment| {
        let message = format!("`impair`: `{}` {error}", text.get_ref());
        Problem::new(text.span(), message)
    })?;
    let pair = text.get_ref().split_whitespace().next().unwrap_or_default();
    let mut names = pair.split("<->").flat_map(|name| name.split("->"));
    let is_unknown = |name: &&str| *name != "*" && !nics.iter().any(|nic| nic.name == *name);
    if let Some(unknown) = names.find(is_unknown) {
        let known: Vec<&str> = nics.iter().map(|nic| nic.name.as_str()).collect();
        let message = format!(
            "`impair`: no [[nic]] is named `{unknown}`: there is {}",
            known.join(", ")
        );
        return Err(Problem::new(text.span(), message));
    }
    Ok(text.into_inner())
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use crate::scenario::{RdmaNetwork, Scenario};

    fn parse(nics: &[&str], fabric: &str) -> Result<Option<RdmaNetwork>, String> {
        let nics: String = nics
            .iter()
            .map(|name| format!("[[nic]]\nname = \"{name}\"\n"))
            .collect();
        let text = format!(
            "name = \"x\"\ntools = true\n{fabric}\n[[gpu]]\nname = \"g0\"\n{nics}[[check]]\nkind = \"command\"\nrun = \"true\"\n"
        );
        let parsed = Scenario::parse(Path::new("x.toml"), text);
        parsed
            .map(|scenario| scenario.fabric)
            .map_err(|e| e.to_string())
    }

    #[test]
    fn two_adapters_have_a_fabric_and_one_has_none() {
        assert_eq!(parse(&["a"], ""), Ok(None));
        assert_eq!(parse(&["a", "b"], ""), Ok(Some(RdmaNetwork::default())));
        let rules = "fabric = { impair = [\"a->b loss=1%\", \"*<->b delay=2ms\"], seed = 7 }";
        let fabric = parse(&["a", "b"], rules).unwrap().unwrap();
        assert_eq!(fabric.impairments, ["a->b loss=1%", "*<->b delay=2ms"]);
        assert_eq!(fabric.seed, Some(7));
    }

    #[test]
    fn more_adapters_than_a_fabric_takes_are_refused() {
        let names: Vec<String> = (1..=65).map(|number| format!("n{number}")).collect();
        let names: Vec<&str> = names.iter().map(String::as_str).collect();
        let error = parse(&names, "").unwrap_err();
        let wanted = "`n65` is one adapter too many: a fabric has at most 64";
        assert!(error.contains(wanted), "{error}");
    }

    #[test]
    fn fabric_mistakes_are_reported_with_their_line() {
        for (nics, fabric, wanted) in [
            (&[][..], "fabric = {}", "x.toml:3: a fabric joins adapters"),
            (
                &["a"],
                "fabric = { impair = [\"a->c loss=1%\"] }",
                "x.toml:3: `impair`: no [[nic]] is named `c`: there is a",
            ),
            (
                &["a"],
                "fabric = { impair = [\"a loss=1%\"] }",
                "x.toml:3: `impair`: `a loss=1%` must begin with a pair of adapters",
            ),
            (
                &["a"],
                "fabric = 1",
                "x.toml:3: `fabric` takes a table, not integer `1`",
            ),
        ] {
            let error = parse(nics, fabric).unwrap_err();
            assert!(error.starts_with(wanted), "{error}");
        }
    }
}
