//! Manual pages, one for each command, and the daemon's.

use std::path::Path;

use clap::CommandFactory as _;
use clap_mangen::Man;

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
    clap_mangen::generate_to(command, directory).map_err(failed)?;
    let daemon = paragpu_daemon::arguments::Arguments::command();
    let page = directory.join("paragpud.8");
    let mut text = Vec::new();
    Man::new(daemon)
        .section("8")
        .render(&mut text)
        .map_err(failed)?;
    std::fs::write(&page, text).map_err(|source| Error::Write { path: page, source })
}
