//! Shows and checks the two configurations.

use std::process::ExitCode;

use paragpu_config::guest::Guest;
use paragpu_config::host::Host;
use paragpu_config::{Configuration, Sources, example};
use serde::Serialize;

use crate::arguments::{ConfigCommand, Output, Side};
use crate::error::{self, Error, print, print_json};

/// One key, as `show` prints it.
#[derive(Debug, Serialize)]
struct Entry {
    key: String,
    /// As TOML.
    value: String,
    origin: String,
    /// `None` of a key in a section that has a name.
    variable: Option<String>,
}

/// Executes `command`.
pub fn run(command: &ConfigCommand) -> Result<ExitCode, Error> {
    match command {
        ConfigCommand::Show { side, output } => match side {
            Side::Guest => show::<Guest>(*output)?,
            Side::Host => show::<Host>(*output)?,
        },
        ConfigCommand::Check { side, file } => {
            let sides = side.map_or(vec![Side::Guest, Side::Host], |side| vec![side]);
            let mut good = true;
            for side in sides {
                let sources = |system: Sources| file.clone().map_or(system, Sources::only);
                good &= match side {
                    Side::Guest => check::<Guest>("guest", &sources(Sources::system::<Guest>())),
                    Side::Host => check::<Host>("host", &sources(Sources::system::<Host>())),
                }?;
            }
            if !good {
                return Ok(ExitCode::FAILURE);
            }
        }
        ConfigCommand::Example { side } => print(match side {
            Side::Guest => example::<Guest>(),
            Side::Host => example::<Host>(),
        })?,
    }
    Ok(ExitCode::SUCCESS)
}

fn show<T: Configuration>(output: Output) -> Result<(), Error> {
    let loaded = Sources::system::<T>().load::<T>()?;
    let entries: Vec<Entry> = loaded
        .entries()
        .into_iter()
        .map(|entry| Entry {
            key: entry.key,
            value: entry.value,
            origin: entry.origin.to_string(),
            variable: entry.variable,
        })
        .collect();
    if output == Output::Json {
        return print_json(&entries);
    }
    let mut table = crate::sessions::table(&["KEY", "VALUE", "FROM"]);
    for entry in entries {
        table.add_row([entry.key, entry.value, entry.origin]);
    }
    print(crate::sessions::lines(&table))
}

fn check<T: Configuration>(name: &str, sources: &Sources) -> Result<bool, Error> {
    match sources.load::<T>() {
        Ok(loaded) => {
            let files: Vec<_> = loaded
                .files
                .iter()
                .map(|file| file.display().to_string())
                .collect();
            let read = if files.is_empty() {
                "no file".to_owned()
            } else {
                files.join(", ")
            };
            print(format!("{name}: good ({read})\n"))?;
            Ok(true)
        }
        Err(error) => {
            print(format!("{name}: {}\n", error::chain(&error)))?;
            Ok(false)
        }
    }
}
