//! Shows and checks the two configurations.

use std::path::Path;
use std::process::ExitCode;

use paragpu_communicator_secure::{CertificateError, Credentials, Files, KeyLifetime};
use paragpu_config::guest::Guest;
use paragpu_config::host::Host;
use paragpu_config::{Configuration, Sources, example};
use serde::Serialize;

use crate::arguments::{ConfigCommand, Output, Side};
use crate::error::{self, Error, print, print_json};

/// One key, as `show` prints it.
#[derive(Debug, Serialize)]
struct Entry<V> {
    key: String,
    value: V,
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
                    Side::Guest => {
                        check::<Guest>("guest", &sources(Sources::system::<Guest>()), of_guest)
                    }
                    Side::Host => {
                        check::<Host>("host", &sources(Sources::system::<Host>()), of_host)
                    }
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
    let entries: Vec<Entry<_>> = loaded
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
        table.add_row([entry.key, entry.value.to_string(), entry.origin]);
    }
    print(crate::sessions::lines(&table))
}

/// The certificates of a guest.
fn of_guest(guest: &Guest) -> Vec<Files<'_>> {
    let tcp = &guest.tcp;
    vec![Files {
        key_shared: tcp.key_shared,
        ..Files::new("tcp", &tcp.ca, &tcp.certificate, &tcp.key)
    }]
}

/// The certificates of a host, for guests and for other hosts.
fn of_host(host: &Host) -> Vec<Files<'_>> {
    let (tcp, others) = (&host.tcp, &host.migration);
    vec![
        Files::new("tcp", &tcp.ca, &tcp.certificate, &tcp.key),
        Files::new("migration", &others.ca, &others.certificate, &others.key),
    ]
}

/// The first of a certificate's files that this user may not read, which says nothing about the
/// user that it is for.
pub fn unreadable<'a>(files: &Files<'a>) -> Option<&'a Path> {
    let closed = |path: &&Path| {
        let opened = paragpu_config::files::open(path);
        opened.is_err_and(|error| error.kind() == std::io::ErrorKind::PermissionDenied)
    };
    [files.ca, files.certificate, files.key]
        .into_iter()
        .find(closed)
}

/// The problem of a certificate that is configured. Returns the first of its files that this
/// user may not read.
fn problem(files: Files<'_>) -> Result<Option<&Path>, CertificateError> {
    if files.ca.as_os_str().is_empty() {
        return Ok(None);
    }
    match unreadable(&files) {
        Some(path) => Ok(Some(path)),
        None => Credentials::load(files, KeyLifetime::Replaceable).map(|_| None),
    }
}

fn check<T: Configuration>(
    name: &str,
    sources: &Sources,
    certificates: fn(&T) -> Vec<Files<'_>>,
) -> Result<bool, Error> {
    match sources.load::<T>() {
        Ok(loaded) => {
            let mut unread = String::new();
            for files in certificates(&loaded.values) {
                match problem(files) {
                    Ok(None) => {}
                    Ok(Some(path)) => {
                        unread += &format!("; this user cannot read {}", path.display());
                    }
                    Err(error) => {
                        print(format!("{name}: {}\n", error::chain(&error)))?;
                        return Ok(false);
                    }
                }
            }
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
            print(format!("{name}: good ({read}){unread}\n"))?;
            Ok(true)
        }
        Err(error) => {
            print(format!("{name}: {}\n", error::chain(&error)))?;
            Ok(false)
        }
    }
}
