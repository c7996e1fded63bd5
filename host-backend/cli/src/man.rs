//! Manual pages: of each command, and of the host's programs.

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
    // The device process takes its name from its package.
    let device = paragpu_qemu_device::settings::Arguments::command().name("paragpu-qemu-device");
    for program in [
        paragpu_daemon::arguments::Arguments::command(),
        paragpu_worker::arguments::Arguments::command(),
        device,
    ] {
        let path = directory.join(format!("{}.8", program.get_name()));
        let mut text = Vec::new();
        Man::new(program)
            .section("8")
            .render(&mut text)
            .map_err(failed)?;
        std::fs::write(&path, text).map_err(|source| Error::Write { path, source })?;
    }
    Ok(())
}
