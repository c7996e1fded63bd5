//! Moves sessions, writes and restores them.

use std::path::{Path, PathBuf};

use indicatif::{ProgressBar, ProgressStyle};
use paragpu_daemon::admin::{Request, Response};

use crate::arguments::Output;
use crate::control::{Control, unexpected};
use crate::error::{Error, print, print_json};
use crate::sessions::bytes;

/// `paragpu migrate`.
pub fn migrate(
    control: &Control,
    session: Option<u64>,
    vm: Option<&str>,
    to: &str,
    stop_first: bool,
    output: Output,
) -> Result<(), Error> {
    let to = destination(to)?;
    let session = match (session, vm) {
        (Some(session), _) => session,
        (None, vm) => only_session(control, vm.unwrap_or_default())?,
    };
    let request = Request::Migrate {
        session,
        to,
        stop_first,
    };
    let done = carry_out(control, &request, output)?;
    tell(&done, output, &format!("session {session} moved"))
}

/// `paragpu checkpoint`.
pub fn checkpoint(
    control: &Control,
    session: u64,
    directory: &Path,
    end: bool,
    output: Output,
) -> Result<(), Error> {
    let request = Request::Checkpoint {
        session,
        directory: absolute(directory)?,
        end,
    };
    let done = carry_out(control, &request, output)?;
    tell(&done, output, &format!("session {session} written"))
}

/// `paragpu restore`.
pub fn restore(control: &Control, directory: &Path, output: Output) -> Result<(), Error> {
    let request = Request::Restore {
        directory: absolute(directory)?,
    };
    let done = carry_out(control, &request, output)?;
    match output {
        Output::Json => print_json(&done),
        Output::Text => print("the session waits for its program\n"),
    }
}

/// The daemon does not know this process's directory.
fn absolute(directory: &Path) -> Result<PathBuf, Error> {
    std::path::absolute(directory).map_err(|source| Error::Write {
        path: directory.to_owned(),
        source,
    })
}

/// The socket that a URL names.
fn destination(url: &str) -> Result<PathBuf, Error> {
    let path = url.strip_prefix("unix://").unwrap_or(url);
    if path.starts_with('/') {
        return Ok(path.into());
    }
    Err(Error::Refused(format!(
        "{url} is not served as a destination: sessions move between daemons of one host, \
         unix:///PATH"
    )))
}

fn only_session(control: &Control, vm: &str) -> Result<u64, Error> {
    let Response::Sessions { sessions } = control.ask(&Request::List {})? else {
        return Err(unexpected());
    };
    let mut of_vm = sessions.iter().filter(|session| session.vm == vm);
    match (of_vm.next(), of_vm.count()) {
        (Some(session), 0) => Ok(session.id),
        (None, _) => Err(Error::Refused(format!("{vm} has no session on this host"))),
        (Some(_), more) => Err(Error::Refused(format!(
            "{vm} has {} sessions, and moving several together is not served yet: move each with \
             --session",
            more + 1
        ))),
    }
}

fn carry_out(control: &Control, request: &Request, output: Output) -> Result<Response, Error> {
    let bar = match output {
        Output::Text => ProgressBar::new(0),
        Output::Json => ProgressBar::hidden(),
    };
    if let Ok(style) = ProgressStyle::with_template("{msg:<8} [{bar:40}] {bytes}/{total_bytes}") {
        bar.set_style(style.progress_chars("=> "));
    }
    let done = control.order(request, |phase, done, all| {
        bar.set_message(if phase == 1 { "running" } else { "stopped" });
        bar.set_length(all);
        bar.set_position(done);
    });
    bar.finish_and_clear();
    match done? {
        done @ Response::Done { .. } => Ok(done),
        _ => Err(unexpected()),
    }
}

fn tell(done: &Response, output: Output, what: &str) -> Result<(), Error> {
    let Response::Done {
        bytes: carried,
        blackout_ms,
        total_ms,
        ..
    } = done
    else {
        return Err(unexpected());
    };
    match output {
        Output::Json => print_json(done),
        Output::Text => print(format!(
            "{what}: {} in {total_ms:.1} ms, stopped for {blackout_ms:.1} ms\n",
            bytes(*carried)
        )),
    }
}
