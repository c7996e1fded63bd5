//! Completion of commands, and of what this host has: sessions, VMs, GPUs.
//!
//! Shells run this program for each completion. The scripts that [`write()`] prints register
//! that. A script and its program must be of the same release, as in a package.

use std::time::Duration;

use clap::ValueEnum;
use clap_complete::CompletionCandidate;
use clap_complete::env::Shells;
use paragpu_control::admin::{Client, Request, Response, SessionInfo, Stats};
use paragpu_control::terminal::plain_line;

use crate::control::place;
use crate::error::{Error, print};

/// The variable by which a script requests a completion. It names the shell.
pub const VARIABLE: &str = "_PARAGPU_COMPLETE";

/// How long a completion waits for the daemon.
const PATIENCE: Duration = Duration::from_secs(1);

/// zsh runs the script at the first completion, as the function of its file's name, and
/// expects candidates from it.
const ZSH_FIRST: &[u8] =
    b"if [ \"$funcstack[1]\" = _paragpu ]; then _clap_dynamic_completer_paragpu \"$@\"; fi\n";

/// A shell.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Shell {
    /// Bash.
    Bash,
    /// Elvish.
    Elvish,
    /// Fish.
    Fish,
    /// PowerShell.
    Powershell,
    /// Zsh.
    Zsh,
}

/// Prints the script of a shell.
pub fn write(shell: Shell) -> Result<(), Error> {
    let name = shell.to_possible_value();
    let shells = Shells::builtins();
    let completer = name.and_then(|name| shells.completer(name.get_name()));
    let mut script = Vec::new();
    if let Some(completer) = completer {
        let program = env!("CARGO_BIN_NAME");
        completer
            .write_registration(VARIABLE, program, program, program, &mut script)
            .map_err(Error::Output)?;
    }
    if shell == Shell::Zsh {
        script.extend_from_slice(ZSH_FIRST);
    }
    print(&script)
}

/// The daemon's answer. There is none where no daemon runs or this user may not ask it: then
/// nothing is completed.
fn ask(request: &Request) -> Option<Response> {
    let client = Client::connect(&place(None).ok()?).ok()?;
    client.ask_within(request, PATIENCE).ok()
}

fn listed() -> Vec<SessionInfo> {
    match ask(&Request::List {}) {
        Some(Response::Sessions { sessions }) => sessions,
        _ => Vec::new(),
    }
}

fn stats() -> Option<Stats> {
    match ask(&Request::Stats {}) {
        Some(Response::Stats(stats)) => Some(stats),
        _ => None,
    }
}

/// A candidate with a description, which zsh and fish show.
fn candidate(value: impl ToString, about: &str) -> CompletionCandidate {
    CompletionCandidate::new(value.to_string()).help(Some(plain_line(about).into()))
}

/// Numbers of sessions.
pub fn sessions() -> Vec<CompletionCandidate> {
    let about = |session: &SessionInfo| format!("{} on {}", session.vm, session.device);
    let sessions = listed();
    let named = sessions.iter().map(|it| candidate(it.id, &about(it)));
    named.collect()
}

/// Names of tenants. Not those with blanks, such as `uid 1000`: bash does not quote candidates.
pub fn vms() -> Vec<CompletionCandidate> {
    let stats = stats();
    let vms = stats.iter().flat_map(|stats| &stats.vms);
    let plain = vms.filter(|vm| vm.vm.chars().all(|letter| letter.is_ascii_graphic()));
    let named = plain.map(|vm| candidate(&vm.vm, &format!("sessions: {}", vm.sessions)));
    named.collect()
}

/// Numbers of this host's GPUs.
pub fn gpus() -> Vec<CompletionCandidate> {
    let stats = stats();
    let devices = stats.iter().flat_map(|stats| &stats.devices);
    let named = devices.map(|device| candidate(device.ordinal, &device.name));
    named.collect()
}

/// Jobs of leases.
pub fn jobs() -> Vec<CompletionCandidate> {
    let mut jobs: Vec<(u64, String)> = listed()
        .into_iter()
        .filter_map(|session| Some((session.job?, session.vm)))
        .collect();
    jobs.sort_unstable();
    jobs.dedup();
    let named = jobs.into_iter().map(|(job, vm)| candidate(job, &vm));
    named.collect()
}
