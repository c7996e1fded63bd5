//! Attaches and detaches the device of libvirt's domains.

use std::path::Path;
use std::time::Duration;

use indicatif::ProgressBar;
use paragpu_libvirt::host::Host;
use paragpu_libvirt::{
    Asked, Attach, Change, Connection, Detach, VmName, attach as attach_device,
    detach as detach_device, hook as run_hook, xml,
};
use serde::Serialize;

use crate::arguments::{self, Output, Scope};
use crate::error::{Error, print, print_json};

/// The changes of a command, for JSON output.
#[derive(Debug, Serialize)]
struct Changed<'a> {
    domain: &'a str,
    uuid: &'a str,
    /// Whether the running domain was changed.
    live: bool,
    /// Whether what it starts with was changed.
    config: bool,
    /// Socket of the VM's device process.
    socket: &'a Path,
}

/// `paragpu attach`.
pub fn attach(
    domain: &str,
    scope: &Scope,
    vm: Option<&VmName>,
    socket: Option<&Path>,
    output: Output,
) -> Result<(), Error> {
    let connection = Connection::open(scope.connect.as_deref())?;
    let wanted = Attach {
        domain,
        asked: scope.asked(),
        vm,
        socket,
    };
    let change = attach_device(&Host::this(), &connection, wanted)?;
    tell(&change, output, "attached to")?;
    if change.live && output == Output::Text {
        print(
            "A guest that was started without the device may have no room for it: see \
             `paragpu attach --help`.\n",
        )?;
    }
    Ok(())
}

/// `paragpu detach`.
pub fn detach(options: &arguments::Detach) -> Result<(), Error> {
    let connection = Connection::open(options.scope.connect.as_deref())?;
    let wanted = Detach {
        domain: &options.domain,
        asked: options.scope.asked(),
        patience: Duration::from_secs(options.timeout),
    };
    let change = release_device(&Host::this(), &connection, wanted, options.output)?;
    tell(&change, options.output, "detached from")
}

/// Detaches, and shows that it waits for the guest.
pub fn release_device(
    host: &Host,
    connection: &Connection,
    wanted: Detach<'_>,
    output: Output,
) -> Result<Change, Error> {
    let waiting = match output {
        Output::Text => ProgressBar::new_spinner(),
        Output::Json => ProgressBar::hidden(),
    };
    waiting.set_message("waiting for the guest to release the device");
    waiting.enable_steady_tick(Duration::from_millis(100));
    let change = detach_device(host, connection, wanted);
    waiting.finish_and_clear();
    Ok(change?)
}

/// `paragpu attach --print-xml`.
pub fn print_element(
    domain: &str,
    vm: Option<&VmName>,
    socket: Option<&Path>,
    output: Output,
) -> Result<(), Error> {
    let socket = match (socket, vm) {
        (Some(socket), _) => socket.to_owned(),
        (None, Some(vm)) => Host::this().socket(vm),
        (None, None) => Host::this().socket(&domain.parse()?),
    };
    let element = xml::device(&socket, None)?;
    match output {
        Output::Text => print(element + "\n"),
        Output::Json => print_json(&serde_json::json!({ "xml": element, "socket": socket })),
    }
}

/// Runs in libvirt's hook. Prints nothing, because libvirt reads the output.
pub fn hook(domain: &str, operation: &str) -> Result<(), Error> {
    Ok(run_hook::run(
        &Host::this(),
        domain,
        operation,
        std::io::stdin(),
    )?)
}

impl Scope {
    fn asked(&self) -> Asked {
        Asked {
            live: self.live,
            config: self.config,
        }
    }
}

fn tell(change: &Change, output: Output, done: &str) -> Result<(), Error> {
    let Change {
        domain,
        uuid,
        live,
        config,
        socket,
    } = change;
    if output == Output::Json {
        return print_json(&Changed {
            domain,
            uuid,
            live: *live,
            config: *config,
            socket,
        });
    }
    let place = match (live, config) {
        (true, true) => "now, and in its configuration",
        (true, false) => "now; its configuration stays as it is",
        (false, _) => "in its configuration, from its next start on",
    };
    print(format!("{done} {domain} {place}\n"))
}
