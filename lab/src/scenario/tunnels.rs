//! The fabrics of other machines that a scenario's is joined with.

use std::net::SocketAddr;
use std::ops::Range;
use std::path::{Path, PathBuf};

use toml::Spanned;

use super::error::Problem;
use super::file::TunnelsTable;
use super::nic::Nic;

/// The largest number of a machine.
const MOST_MACHINES: u32 = 0xffff;

/// Tunnels between this fabric and those of other machines, by QUIC.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tunnels {
    /// Number of this machine, its own among them: 1 to 65535.
    pub machine: u32,
    /// This machine's folder of those that `peerbar-fabric certificates` made.
    pub certificates: PathBuf,
    /// Which side begins.
    pub side: TunnelSide,
}

/// Which side of its tunnels a fabric is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TunnelSide {
    /// It takes those of others.
    Listen(SocketAddr),
    /// It makes one to each of these.
    Connect(Vec<SocketAddr>),
}

impl Tunnels {
    /// The number of an adapter's address among those of all machines.
    pub(super) fn gid(&self, number: u32) -> u32 {
        self.machine << MOST_MACHINES.count_ones() | number
    }
}

/// Checks tunnels. Their folder of certificates is relative to `folder`.
pub(super) fn tunnels(table: Spanned<TunnelsTable>, folder: &Path) -> Result<Tunnels, Problem> {
    let at = table.span();
    let table = table.into_inner();
    let machine = *table.machine.get_ref();
    if !(1..=MOST_MACHINES).contains(&machine) {
        let message = format!(
            "`machine = {machine}`: write 1 to {MOST_MACHINES}, another number on each machine"
        );
        return Err(Problem::new(table.machine.span(), message));
    }
    let side = match (&table.listen, table.connect.as_slice()) {
        (Some(listen), []) => TunnelSide::Listen(address(listen)?),
        (None, [_, ..]) => {
            let addresses = table.connect.iter().map(address);
            TunnelSide::Connect(addresses.collect::<Result<_, _>>()?)
        }
        (None, []) => {
            let message = "tunnels have two sides: add `listen` here and `connect` on the other machine, or the reverse";
            return Err(Problem::new(at, message));
        }
        (Some(listen), [_, ..]) => {
            let message = "a fabric either listens or connects: leave `listen` or `connect` out";
            return Err(Problem::new(listen.span(), message));
        }
    };
    Ok(Tunnels {
        machine,
        certificates: folder.join(table.certificates),
        side,
    })
}

/// Gives each adapter an address of its own among those of all machines, where others are joined by `tunnels`.
pub(super) fn number<'a>(nics: impl Iterator<Item = &'a mut Nic>, tunnels: Option<&Tunnels>) {
    for (nic, number) in nics.zip(1..) {
        nic.gid = tunnels.map_or(number, |tunnels| tunnels.gid(number));
    }
}

fn address(text: &Spanned<String>) -> Result<SocketAddr, Problem> {
    text.get_ref().parse().map_err(|_| {
        let at: Range<usize> = text.span();
        let message = format!(
            "`{}` is no address: write an IP address and a port, as in \"192.0.2.1:4791\"",
            text.get_ref().escape_debug()
        );
        Problem::new(at, message)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scenario::{GuestGroup, Scenario};

    const NIC: &str = "[[nic]]\nname = \"a\"\n[[nic]]\nname = \"b\"\n";

    fn parse(fabric: &str) -> Result<Scenario, String> {
        let check = "[[check]]\nkind = \"command\"\nrun = \"true\"\n";
        let text = format!("name = \"x\"\ntools = true\nfabric = {{ {fabric} }}\n{NIC}{check}");
        let parsed = Scenario::parse(Path::new("/s/x.toml"), text);
        parsed.map_err(|error| error.to_string())
    }

    #[test]
    fn adapters_of_a_machine_have_addresses_of_their_own() {
        let scenario = parse(
            "tunnels = { machine = 2, certificates = \"certs/beta\", connect = [\"192.0.2.1:4791\"] }",
        );
        let scenario = scenario.unwrap();
        let tunnels = Tunnels {
            machine: 2,
            certificates: "/s/certs/beta".into(),
            side: TunnelSide::Connect(vec!["192.0.2.1:4791".parse().unwrap()]),
        };
        assert_eq!(scenario.fabric.unwrap().tunnels, Some(tunnels));
        let gids = scenario.nics.iter().map(|nic| nic.gid);
        assert_eq!(gids.collect::<Vec<_>>(), [0x2_0001, 0x2_0002]);
        assert!(scenario.rdma_ends);
        assert!(scenario.packages.contains(&"ibverbs-providers".to_owned()));
        let alone = parse("seed = 1").unwrap();
        assert_eq!((alone.nics[1].gid, alone.rdma_ends), (2, false));
    }

    #[test]
    fn group_of_a_machine_has_addresses_of_its_own() {
        let text = "name = \"x\"\n[fabric.tunnels]\nmachine = 3\ncertificates = \"c\"\nlisten = \"[::]:1\"\n\
            [[guest]]\nname = \"left\"\n[[nic]]\nname = \"a\"\nguest = \"left\"\n";
        let group = GuestGroup::parse_interactive(Path::new("/s/x.toml"), text);
        let group = group.unwrap().unwrap();
        assert_eq!(group.guests[0].scenario.nics[0].gid, 0x3_0001);
        let tunnels = group.fabric.unwrap().tunnels.unwrap();
        assert_eq!(tunnels.side, TunnelSide::Listen("[::]:1".parse().unwrap()));
    }

    #[test]
    fn rule_about_an_adapter_of_another_machine_is_taken() {
        let tunnel = "tunnels = { machine = 1, certificates = \"c\", listen = \"127.0.0.1:0\" }";
        let rule = "impair = [\"a->far loss=1%\"]";
        parse(&format!("{tunnel}, {rule}")).unwrap();
        let error = parse(rule).unwrap_err();
        assert!(error.contains("no [[nic]] is named `far`"), "{error}");
    }

    #[test]
    fn mistakes_about_tunnels_name_the_way_out() {
        let listen = "listen = \"127.0.0.1:1\"";
        let both = format!("machine = 1, {listen}, connect = [\"192.0.2.1:1\"]");
        for (tunnels, wanted) in [
            (listen, "missing field `machine`"),
            (
                "machine = 1",
                "add `listen` here and `connect` on the other",
            ),
            ("machine = 1, connect = []", "add `listen` here"),
            ("machine = 65536", "`machine = 65536`: write 1 to 65535"),
            (&both, "either listens or connects"),
            (
                "machine = 1, listen = \"beta\"",
                "`beta` is no address: write an IP address and a port",
            ),
        ] {
            let error = parse(&format!("tunnels = {{ certificates = \"c\", {tunnels} }}"));
            let error = error.unwrap_err();
            let begins = error.starts_with("/s/x.toml:3: ");
            assert!(begins && error.contains(wanted), "{error}");
        }
    }
}
