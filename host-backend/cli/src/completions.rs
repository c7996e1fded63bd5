//! Completion scripts of shells.

use clap::CommandFactory as _;
use clap_complete::Shell;

use crate::arguments::Arguments;
use crate::error::{Error, print};

/// Prints the script of a shell.
pub fn write(shell: Shell) -> Result<(), Error> {
    let mut script = Vec::new();
    let mut command = shown(&Arguments::command());
    clap_complete::generate(shell, &mut command, "paragpu", &mut script);
    print(&script)
}

/// The command without hidden ones, which clap_complete would offer.
fn shown(command: &clap::Command) -> clap::Command {
    let subcommands = command.get_subcommands();
    let subcommands = subcommands.filter(|command| !command.is_hide_set());
    // clap keeps names for as long as the process runs.
    let name: &'static str = command.get_name().to_owned().leak();
    clap::Command::new(name)
        .about(command.get_about().cloned().unwrap_or_default())
        .version(command.get_version().map(|_| env!("CARGO_PKG_VERSION")))
        .args(command.get_arguments().cloned())
        .groups(command.get_groups().cloned())
        .subcommands(subcommands.map(shown))
}
