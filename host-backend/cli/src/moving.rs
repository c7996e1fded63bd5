//! Moves sessions, writes and restores them.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use indicatif::{MultiProgress, ProgressBar, ProgressDrawTarget, ProgressStyle};
use paragpu_control::admin::{self, Figures, Moved, Progress, Request, Response};
use paragpu_control::terminal::{plain, plain_line};
use paragpu_control::worker::Phase;

use crate::arguments::{Checkpoint, Migrate, Output, Restore};
use crate::control::{Control, unexpected};
use crate::error::{Error, print, print_json};
use crate::sessions::bytes;

/// `paragpu migrate`. Fails where one of several sessions did not move.
pub fn migrate(control: &Control, migrate: &Migrate) -> Result<ExitCode, Error> {
    let session = migrate.session.or(migrate.named_session);
    let request = Request::Migrate(admin::Migrate {
        session,
        vm: migrate.vm.clone(),
        gpu: migrate.gpu,
        to: migrate.to.as_deref().map(url),
        to_gpu: migrate.to_gpu,
        communicator: migrate.communicator.clone(),
        stop_first: migrate.stop_first,
        copy: migrate.copy,
        most_pause_ms: None,
    });
    let output = migrate.output;
    let done = carry_out(control, &request, output)?;
    let Response::Moved { sessions } = done else {
        let session = session.unwrap_or_default();
        let Response::Done(figures) = &done else {
            return Err(unexpected());
        };
        tell(&done, output, &moved(session, figures))?;
        return Ok(ExitCode::SUCCESS);
    };
    let good = sessions.iter().all(|session| session.moved);
    match output {
        Output::Json => print_json(&sessions)?,
        Output::Text => print(sessions.iter().map(outcome_line).collect::<String>())?,
    }
    Ok(match good {
        true => ExitCode::SUCCESS,
        false => ExitCode::FAILURE,
    })
}

/// A path alone means a socket of this host.
pub fn url(to: &str) -> String {
    match to.starts_with('/') {
        true => format!("unix://{to}"),
        false => to.to_owned(),
    }
}

/// The outcome for one of several sessions.
pub fn outcome_line(outcome: &Moved) -> String {
    let Moved { session, vm, .. } = outcome;
    let vm = plain_line(vm);
    match &outcome.error {
        Some(error) => format!("session {session} of {vm} did not move: {}\n", plain(error)),
        None => format!(
            "{}: {}\n",
            moved(format_args!("{session} of {vm}"), &outcome.figures),
            took(&outcome.figures)
        ),
    }
}

/// That a session moved, and its new number if this daemon knows it.
fn moved(session: impl std::fmt::Display, figures: &Figures) -> String {
    match figures.new_session {
        Some(new) => format!("session {session} moved, and is session {new} now"),
        None => format!("session {session} moved"),
    }
}

/// Bytes and times of a move.
fn took(figures: &Figures) -> String {
    format!(
        "{} in {:.1} ms, stopped for {:.1} ms, longest delay of a call {:.1} ms",
        carried(figures),
        figures.total_ms,
        figures.blackout_ms,
        figures.longest_delay_ms
    )
}

/// Bytes that were sent, handed over, and copied between GPUs.
fn carried(figures: &Figures) -> String {
    let mut said = bytes(figures.bytes);
    for (size, how) in [
        (figures.handed_over_bytes, "handed over"),
        (figures.peer_copied_bytes, "from GPU to GPU"),
    ] {
        if size > 0 {
            said += &format!(" and {} {how}", bytes(size));
        }
    }
    said
}

/// `paragpu checkpoint`.
pub fn checkpoint(control: &Control, order: &Checkpoint) -> Result<(), Error> {
    let Checkpoint {
        session,
        every,
        output,
        ..
    } = *order;
    let request = Request::Checkpoint {
        session,
        directory: absolute(&order.directory)?,
        end: order.end,
        every,
    };
    let done = carry_out(control, &request, output)?;
    match (every, output) {
        (Some(0), Output::Text) => print(format!("session {session} is no longer checkpointed\n")),
        _ => tell(&done, output, &format!("session {session} written")),
    }
}

/// `paragpu restore`.
pub fn restore(control: &Control, order: &Restore) -> Result<(), Error> {
    let Restore { copies, output, .. } = *order;
    let request = Request::Restore {
        directory: absolute(&order.directory)?,
        copies,
    };
    let done = carry_out(control, &request, output)?;
    let Response::Done(figures) = &done else {
        return Err(unexpected());
    };
    if output == Output::Json {
        return print_json(&done);
    }
    let read = bytes(figures.bytes);
    let took = format!("{read} in {:.1} ms", figures.total_ms);
    print(match copies {
        None => {
            let session = match figures.new_session {
                Some(session) => format!("session {session}"),
                None => "the session".to_owned(),
            };
            format!("{session} waits for its program: {took}\n")
        }
        Some(count) => format!("{count} copies wait for their programs: {took}\n"),
    })
}

/// The daemon does not know this process's directory, and gets it as text.
fn absolute(directory: &Path) -> Result<PathBuf, Error> {
    let absolute = std::path::absolute(directory).map_err(|source| Error::Write {
        path: directory.to_owned(),
        source,
    })?;
    if absolute.to_str().is_none() {
        return Err(Error::Refused(format!(
            "the name of {} is not UTF-8, as the names of checkpoints' directories must be",
            absolute.display()
        )));
    }
    Ok(absolute)
}

/// Gives an order, and shows how far it is.
pub fn carry_out(control: &Control, request: &Request, output: Output) -> Result<Response, Error> {
    let bars = MultiProgress::with_draw_target(match output {
        Output::Text => ProgressDrawTarget::stderr(),
        Output::Json => ProgressDrawTarget::hidden(),
    });
    let mut of: BTreeMap<u64, ProgressBar> = BTreeMap::new();
    let done = control.order(request, |Progress { session, progress }| {
        let bar = of.entry(session).or_insert_with(|| {
            let bar = bars.add(ProgressBar::new(0));
            let template = "{prefix:>8} {msg:<8} [{bar:40}] {bytes}/{total_bytes} {eta}";
            if let Ok(style) = ProgressStyle::with_template(template) {
                bar.set_style(style.progress_chars("=> "));
            }
            bar.set_prefix(session.to_string());
            bar
        });
        bar.set_message(match progress.phase {
            Phase::Running => "running",
            Phase::Stopped => "stopped",
        });
        bar.set_length(progress.all);
        bar.set_position(progress.done);
    });
    for bar in of.values() {
        bar.finish_and_clear();
    }
    done
}

fn tell(done: &Response, output: Output, what: &str) -> Result<(), Error> {
    let Response::Done(figures) = done else {
        return Err(unexpected());
    };
    match output {
        Output::Json => print_json(done),
        Output::Text => print(format!("{what}: {}\n", took(figures))),
    }
}
