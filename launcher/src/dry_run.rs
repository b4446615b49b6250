//! The command lines of a run, quoted as a shell reads them.
//!
//! They show the programs of a run but do not replace one: the launcher makes the folder of the
//! sockets, listens for the report, and says so in a comment above them.

use std::path::Path;

use peerbar_lab::artifacts::Artifacts;
use peerbar_lab::exit::Failure;
use peerbar_lab::guest_files::FILES;
use peerbar_lab::programs::{check_foreign, program};
use peerbar_lab::qemu::{self, Boot, Sockets};
use peerbar_lab::scenario::{GuestGroup, Scenario};
use peerbar_lab::server_arguments::{
    ServerCommand, ServerProgram, fabric_command, server_commands,
};
use peerbar_lab::shell_word::quoted;
use peerbar_lab::topology::Topology;

/// Stands for the folder that a run makes for its sockets.
const SOCKETS: &str = "/tmp/peerbar";

/// Returns the sockets of one guest of several: a folder for its sockets only, and the fabric of
/// all.
pub(crate) fn sockets_of(guest: &str) -> Sockets {
    let all = Path::new(SOCKETS);
    let fabric = Sockets::in_folder(all).fabric();
    Sockets::in_folder(&all.join(guest)).with_shared_fabric(Some(fabric))
}

/// Returns the sockets of an only guest.
pub(crate) fn sockets() -> Sockets {
    Sockets::in_folder(Path::new(SOCKETS))
}

/// Returns the text before the guests of `group`: the fabric's line, or nothing without a fabric.
pub(crate) fn text_before_guests(group: &GuestGroup) -> Result<String, Failure> {
    let fabric = group.fabric.iter();
    let fabric = fabric.map(|fabric| fabric_command(fabric, &sockets()));
    fabric.map(|command| command_line(&command)).collect()
}

/// Returns a comment, one line for each server, then QEMU's.
pub(crate) fn text(
    artifacts: &Artifacts,
    boot: &Boot<'_>,
    scenario: &Scenario,
    sockets: &Sockets,
) -> Result<String, Failure> {
    let folder = sockets.folder().display();
    let mut text = format!(
        "# A run makes {folder}, a folder of its own, and listens at {} before it starts these:\n",
        sockets.report().display()
    );
    let has_files = !scenario.guest_files().is_empty();
    if has_files {
        text += &format!(
            "# It copies the scenario's files into {folder}/{FILES}, a folder of the run.\n"
        );
    }
    let packages = artifacts.packages.as_ref();
    if packages.is_some_and(|packages| !packages.path().exists()) {
        let names = scenario.packages.join(", ");
        text += &format!("# Before that, it fetches packages from Debian, once: {names}\n");
    }
    for program in &scenario.programs {
        if let Some(build) = &program.build {
            let folder = program.folder.display();
            text += &format!("# Before that, it builds in {folder}: {build}\n");
        }
    }
    let topology = Topology::of(scenario);
    let servers = server_commands(&topology, scenario.recording, sockets);
    for server in servers.into_iter().flatten() {
        text += &command_line(&server)?;
    }
    let files = sockets.folder().join(FILES);
    let files = has_files.then_some(files.as_path());
    let shared = artifacts.shared(scenario, files);
    let qemu = &artifacts.qemu;
    let settings = qemu
        .env
        .iter()
        .map(|(name, value)| format!("{}={}", name.to_string_lossy(), value.to_string_lossy()));
    let program = [qemu.program.display().to_string()].into_iter();
    let leading = qemu
        .args
        .iter()
        .map(|word| word.to_string_lossy().into_owned());
    let words = qemu::arguments(boot, &topology, sockets, &shared);
    let words = words.iter().map(|word| word.to_string_lossy().into_owned());
    text += &line(
        ["env".to_owned()]
            .into_iter()
            .chain(settings)
            .chain(program)
            .chain(leading)
            .chain(words),
    );
    Ok(text)
}

fn command_line(server: &ServerCommand) -> Result<String, Failure> {
    let path = match &server.program {
        ServerProgram::Own(name) => program(name)?,
        ServerProgram::Foreign(foreign) => {
            check_foreign(&foreign.file).map_err(Failure::Usage)?;
            foreign.file.clone()
        }
    };
    let path = path.display().to_string();
    let command = line([path].into_iter().chain(server.arguments.clone()));
    Ok(match &server.program {
        ServerProgram::Own(_) => command,
        ServerProgram::Foreign(foreign) => {
            let own = foreign.socket.parent().unwrap_or(Path::new("."));
            let [own, folder] = [own, &foreign.folder].map(|path| quoted(&path.to_string_lossy()));
            format!("(mkdir -p {own}; cd {folder}; {})\n", command.trim_end())
        }
    })
}

fn line(words: impl Iterator<Item = String>) -> String {
    let words: Vec<String> = words.map(|word| quoted(&word)).collect();
    words.join(" ") + "\n"
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn server_of_another_project_starts_in_the_scenario_s_folder() {
        let text = "name = \"x\"\n[[device]]\nname = \"d\"\ncommand = [\"sh\", \"{socket}\"]\n";
        let scenario = Scenario::parse_interactive(Path::new("/my lab/x.toml"), text).unwrap();
        let topology = Topology::of(&scenario);
        let [servers, _] = server_commands(&topology, scenario.recording, &sockets());
        let expected =
            "(mkdir -p /tmp/peerbar/foreign-d; cd '/my lab'; sh /tmp/peerbar/foreign-d/socket)\n";
        assert_eq!(command_line(&servers[0]).unwrap(), expected);
    }

    #[test]
    fn words_are_a_line_for_a_shell() {
        assert_eq!(
            line(["a".to_owned(), "{\"b\"}".to_owned()].into_iter()),
            "a '{\"b\"}'\n"
        );
    }
}
