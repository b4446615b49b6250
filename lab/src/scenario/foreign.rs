//! Checks a `[[device]]` table.

use std::path::{self, Path, PathBuf};

use peerbar_dma::LinkSpeed;
use peerbar_fault::{Faults, Rule};
use peerbar_report::{ForeignDevice, ForeignKind, TableError};
use peerbar_switch::LinkMode;
use serde::Deserialize;
use toml::Spanned;

use super::attach::{AttachPoint, AttachPoints};
use super::error::Problem;
use super::fault::faults;
use super::file::DeviceTable;
use super::link::{link, speed};
use crate::qemu::Sockets;

/// Stands for the socket of the device's server in its command.
pub(crate) const SOCKET: &str = "{socket}";
/// The word of `ready` for the socket itself.
const READY_SOCKET: &str = "socket";
/// The words of `kind`.
const KINDS: [(&str, ForeignKind); 2] =
    [("nvme", ForeignKind::Nvme), ("other", ForeignKind::Other)];

/// A device whose vfio-user server is not one of peerbar's.
#[derive(Clone, Debug)]
pub struct Foreign {
    /// Name in the scenario, identifier in QEMU.
    pub name: String,
    /// Its place.
    pub attach: AttachPoint,
    /// The switch's treatment of its requests to peers.
    pub link: LinkMode,
    /// Speed of its link.
    pub link_speed: LinkSpeed,
    /// The socket of its server, or `None` if the run chooses one for the server's command.
    pub socket: Option<PathBuf>,
    /// The command that starts its server, or `None` if that runs already.
    pub command: Option<ServerProgram>,
    /// Its kind, or `None` if its class code determines that.
    pub kind: Option<ForeignKind>,
    /// The part of its DMA that comes by messages.
    pub count: Count,
    /// Its server may read and write all memory that it is lent.
    pub read_write: bool,
    /// The faults that are injected into its operations.
    pub faults: Vec<Rule>,
}

impl Foreign {
    /// Returns its description for the guest's agent. It is below the port with this `slot` number.
    pub(super) fn plan(&self, slot: u32) -> ForeignDevice {
        ForeignDevice {
            name: self.name.clone(),
            slot,
            kind: self.kind,
            counted: self.count == Count::All,
        }
    }
}

/// The command that starts a server of another project.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServerProgram {
    /// Its program and arguments. In the arguments, `{socket}` stands for the socket.
    pub words: Vec<String>,
    /// The folder in which it is started.
    pub folder: PathBuf,
    /// The file that must exist before a client may connect, or `None` for the socket.
    pub ready: Option<PathBuf>,
    /// Files and folders that it may write, in addition to the folder of its socket.
    pub writable: Vec<PathBuf>,
}

/// The part of a device's DMA that its server sends as messages, so that it can be counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Count {
    /// Only DMA to memory that the server cannot map.
    #[default]
    Messages,
    /// All DMA: the server can map no memory.
    All,
}

/// Checks one device, whose name is known to fit. Paths are relative to `folder`.
pub(super) fn foreign(
    table: DeviceTable,
    attach_points: &AttachPoints,
    folder: &Path,
) -> Result<Foreign, Problem> {
    // The server is started in this folder, so the paths must not be relative to another.
    let here = Path::new(".").join(folder);
    let folder = &path::absolute(&here).unwrap_or(here);
    let at = table.name.span();
    let name = table.name.into_inner();
    let attach = attach_points.of_device(table.below)?;
    let link = link(table.link, &name, &attach)?;
    // It has only the subjects that every device has.
    let subjects = Faults::default();
    subjects.pass_interrupts_on();
    let socket = table.socket.map(|path| socket(path, folder)).transpose()?;
    let command = match table.command {
        Some(words) => Some(ServerProgram {
            ready: ready(table.ready, folder),
            writable: writable(table.writable, folder)?,
            ..program(words, socket.is_some(), folder)?
        }),
        None => {
            refuse("ready", table.ready.as_ref())?;
            refuse("writable", table.writable.first())?;
            None
        }
    };
    if socket.is_none() && command.is_none() {
        let message = format!(
            "`{name}` has no server: add `socket` with the path of a running one, or `command` to start one"
        );
        return Err(Problem::new(at, message));
    }
    Ok(Foreign {
        name,
        attach,
        link,
        link_speed: speed(table.link_latency, table.link_bandwidth)?,
        socket,
        command,
        kind: table.kind.map(kind).transpose()?,
        count: table.count.unwrap_or_default(),
        read_write: table.read_write,
        faults: faults(&table.faults, &subjects)?,
    })
}

/// Returns the path of a socket, which must fit an address.
fn socket(path: Spanned<PathBuf>, folder: &Path) -> Result<PathBuf, Problem> {
    let at = path.span();
    let path = folder.join(path.into_inner());
    let length = path.as_os_str().len();
    if length > Sockets::LONGEST {
        let (path, longest) = (path.display(), Sockets::LONGEST);
        let message = format!(
            "`socket`: {path} is {length} bytes long, and the address of a socket at most {longest}: choose a shorter path"
        );
        return Err(Problem::new(at, message));
    }
    Ok(path)
}

/// Checks the command of a server. Without a `socket` key it must take the socket from its command
/// line.
fn program(
    words: Spanned<Vec<String>>,
    has_socket: bool,
    folder: &Path,
) -> Result<ServerProgram, Problem> {
    let (at, words) = (words.span(), words.into_inner());
    if words.first().is_none_or(String::is_empty) {
        let message = "`command` has no program: write it as a list of words";
        return Err(Problem::new(at, message));
    }
    let mut arguments = words.iter().skip(1);
    if !has_socket && !arguments.any(|word| word.contains(SOCKET)) {
        let message = "`command` does not say where the server listens: write `{socket}` in an argument, or add `socket`";
        return Err(Problem::new(at, message));
    }
    Ok(ServerProgram {
        words,
        folder: folder.to_owned(),
        ready: None,
        writable: Vec::new(),
    })
}

/// Returns the file that shows that a server serves, if it is not the socket.
fn ready(word: Option<Spanned<String>>, folder: &Path) -> Option<PathBuf> {
    let word = word.map(Spanned::into_inner);
    let file = word.filter(|word| word != READY_SOCKET);
    file.map(|file| folder.join(file))
}

/// Returns the files and folders that a server may write, which must exist.
fn writable(paths: Vec<Spanned<PathBuf>>, folder: &Path) -> Result<Vec<PathBuf>, Problem> {
    let path = |path: Spanned<PathBuf>| {
        let at = path.span();
        let path = folder.join(path.into_inner());
        match path.exists() {
            true => Ok(path),
            false => {
                let message = format!("`writable`: {} does not exist: make it", path.display());
                Err(Problem::new(at, message))
            }
        }
    };
    paths.into_iter().map(path).collect()
}

/// Refuses a `key` of a device whose server a run does not start.
fn refuse<T>(key: &str, value: Option<&Spanned<T>>) -> Result<(), Problem> {
    let Some(value) = value else {
        return Ok(());
    };
    let message = format!("`{key}` is for a `command`: add one, or leave `{key}` out");
    Err(Problem::new(value.span(), message))
}

fn kind(word: Spanned<String>) -> Result<ForeignKind, Problem> {
    let found = KINDS.iter().find(|(known, _)| known == word.get_ref());
    found.map(|(_, kind)| *kind).ok_or_else(|| {
        let message = format!("`kind`: `{}` is unknown", word.get_ref());
        let known = KINDS.iter().map(|(known, _)| *known);
        TableError::unknown(word.span(), message, word.get_ref(), known).into()
    })
}

#[cfg(test)]
mod tests {
    use crate::scenario::Scenario;

    use super::*;

    /// Reads a scenario with these lines about its only device, from line 5 on.
    fn parse(lines: &str) -> Result<Foreign, String> {
        let text = format!(
            "name = \"x\"\nswitch = [{{ name = \"s0\" }}]\n[[device]]\nname = \"dev0\"\n{lines}\n"
        );
        let parsed = Scenario::parse_interactive(Path::new("/lab/x.toml"), text);
        let mut devices = parsed.map_err(|error| error.to_string())?.foreign;
        Ok(devices.remove(0))
    }

    #[test]
    fn socket_is_that_of_a_running_server() {
        let device = parse("below = \"s0\"\nsocket = \"run/cntrl\"\nkind = \"nvme\"").unwrap();
        assert_eq!(device.socket, Some("/lab/run/cntrl".into()));
        assert_eq!(device.attach.switch(), Some("s0"));
        assert!(device.command.is_none() && device.kind == Some(ForeignKind::Nvme));
        assert_eq!(device.count, Count::Messages);
    }

    #[test]
    fn command_starts_a_server_in_the_scenario_s_folder() {
        let device = parse("command = [\"./server\", \"--at={socket}\"]\ncount = \"all\"").unwrap();
        let program = device.command.unwrap();
        assert_eq!((program.folder, program.ready), ("/lab".into(), None));
        assert_eq!((device.kind, device.count), (None, Count::All));
        let keys = "command = [\"nvmf_tgt\"]\nsocket = \"/run/cntrl\"\n";
        let device = parse(&format!("{keys}ready = \"socket\"")).unwrap();
        assert_eq!(device.command.unwrap().ready, None);
        let device = parse(&format!("{keys}ready = \"up\"")).unwrap();
        assert_eq!(device.command.unwrap().ready, Some("/lab/up".into()));
    }

    #[test]
    fn scenario_in_the_current_folder_starts_its_server_there() {
        let text = "name = \"x\"\n[[device]]\nname = \"d\"\ncommand = [\"a\", \"{socket}\"]\n";
        let scenario = Scenario::parse_interactive(Path::new("x.toml"), text).unwrap();
        let program = scenario.foreign[0].command.clone().unwrap();
        assert_eq!(program.folder, std::env::current_dir().unwrap());
    }

    #[test]
    fn two_devices_do_not_share_a_socket() {
        let second = "socket = \"run/a\"\n[[device]]\nname = \"dev1\"\nsocket = \"./run/a\"";
        let expected = "/lab/x.toml:8: `socket` /lab/./run/a is already that of another device: give each its own (see line 5)";
        assert_eq!(parse(second).unwrap_err(), expected);
        let second = second.replace("./run/a", "run/b");
        assert!(parse(&second).is_ok());
    }

    #[test]
    fn mistake_in_a_device_names_its_line_and_remedy() {
        let socket = "socket = \"/s\"";
        for (lines, expected) in [
            (
                "below = \"s0\"".to_owned(),
                "4: `dev0` has no server: add `socket` with the path of a running one, or `command` to start one",
            ),
            (
                "command = [\"nvmf_tgt\"]".to_owned(),
                "5: `command` does not say where the server listens: write `{socket}` in an argument, or add `socket`",
            ),
            (
                "command = []".to_owned(),
                "5: `command` has no program: write it as a list of words",
            ),
            (
                format!("{socket}\nready = \"up\""),
                "6: `ready` is for a `command`: add one, or leave `ready` out",
            ),
            (
                format!("{socket}\nwritable = [\"x\"]"),
                "6: `writable` is for a `command`: add one, or leave `writable` out",
            ),
            (
                "command = [\"a\", \"{socket}\"]\nwritable = [\"x\"]".to_owned(),
                "6: `writable`: /lab/x does not exist: make it",
            ),
            (
                format!("socket = \"/{}\"", "s".repeat(107)),
                &format!(
                    "5: `socket`: /{} is 108 bytes long, and the address of a socket at most 107: choose a shorter path",
                    "s".repeat(107)
                ),
            ),
            (
                format!("{socket}\nkind = \"nvm\""),
                "6: `kind`: `nvm` is unknown: did you mean `nvme`?",
            ),
            (
                format!("{socket}\ncount = \"al\""),
                "6: `al` is unknown: did you mean `all`?",
            ),
            (
                format!("{socket}\nlink = \"drop\""),
                "6: `dev0` is below no switch: give it a `below`, or leave `link` out",
            ),
            (
                format!("{socket}\nbelow = \"s1\""),
                "6: no [[switch]] or [[host-bridge]] is named `s1`: declare it, or leave `below` out",
            ),
            (
                format!("{socket}\nfaults = [\"drop completion\"]"),
                "6: `faults`: `drop completion` is for another device: this one has no completion",
            ),
            (
                format!("{socket}\nfaults = [\"drop interrupt vector=0\"]"),
                "6: `faults`: `drop interrupt vector=0` is for interrupts, which go from the device's own server straight to QEMU: use `dma`, or a device of peerbar's",
            ),
            (
                "sockets = \"/s\"".to_owned(),
                "5: unknown key `sockets`: did you mean `socket`?",
            ),
        ] {
            let expected = format!("/lab/x.toml:{expected}");
            assert_eq!(parse(&lines).unwrap_err(), expected, "{lines}");
        }
    }
}
