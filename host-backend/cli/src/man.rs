//! Manual pages of each command. The other programs print their own: `--man`.

use std::path::Path;

use clap::CommandFactory as _;

use crate::arguments::Arguments;
use crate::error::Error;

/// Writes them into `directory`.
pub fn write(directory: &Path) -> Result<(), Error> {
    let failed = |source| Error::Write {
        path: directory.to_owned(),
        source,
    };
    std::fs::create_dir_all(directory).map_err(failed)?;
    // help and its copies of each command say nothing new.
    let command = Arguments::command().disable_help_subcommand(true);
    clap_mangen::generate_to(command, directory).map_err(failed)
}
