//! `paragpu`: shows and controls virtual GPUs, on a host and in a guest.
#![forbid(unsafe_code)]

mod arguments;
mod certificate;
mod completions;
mod config;
mod control;
mod doctor;
mod error;
mod libvirt;
mod man;
mod moving;
mod pool;
mod redirect;
mod sessions;
mod top;
mod travel;
mod values;

use std::io::Write as _;
use std::process::ExitCode;

use clap::{ArgMatches, CommandFactory as _, FromArgMatches as _};
use clap_complete::CompleteEnv;
use paragpu_control::admin::Response;
use paragpu_control::terminal::plain;

use crate::arguments::{Arguments, Attach, Command, Output, Run};
use crate::error::Error;

fn main() -> ExitCode {
    // Exits if a shell requests a completion.
    CompleteEnv::with_factory(Arguments::command)
        .var(completions::VARIABLE)
        .complete();
    let (outcome, output) = match parse() {
        Ok((arguments, output)) => (run(&arguments), output),
        Err(answer) => (show(&answer), Output::Text),
    };
    match outcome {
        Ok(code) => code,
        // The reader of the output has closed it.
        Err(Error::Output(error)) if error.kind() == std::io::ErrorKind::BrokenPipe => {
            ExitCode::SUCCESS
        }
        Err(error) => {
            report(&error, output);
            ExitCode::from(error.status())
        }
    }
}

/// The command line, and the output format of its command.
fn parse() -> Result<(Arguments, Output), clap::Error> {
    let mut command = Arguments::command();
    let matches = command.try_get_matches_from_mut(std::env::args_os())?;
    let arguments = Arguments::from_arg_matches(&matches);
    let arguments = arguments.map_err(|error| error.format(&mut command))?;
    Ok((arguments, output_of(&matches)))
}

fn output_of(matches: &ArgMatches) -> Output {
    match matches.subcommand() {
        Some((_, command)) => output_of(command),
        // Not every command has the option.
        None => match matches.try_get_one("output") {
            Ok(Some(output)) => *output,
            _ => Output::Text,
        },
    }
}

/// Shows help, the version, or how a command line is wrong.
fn show(answer: &clap::Error) -> Result<ExitCode, Error> {
    if answer.use_stderr() {
        answer.exit();
    }
    let shown = answer.print().and_then(|()| std::io::stdout().flush());
    shown.map_err(Error::Output)?;
    Ok(ExitCode::SUCCESS)
}

/// Prints why a command failed: to standard error, and with `-o json` as an object to standard
/// output, too.
fn report(error: &Error, output: Output) {
    let reason = error::chain(error);
    if output == Output::Json && !matches!(error, Error::Output(_)) {
        let error = reason.clone();
        // Standard error says it, too.
        let _ = error::print_json_line(&Response::Error { error });
    }
    eprintln!("paragpu: {}", plain(&reason));
}

fn run(arguments: &Arguments) -> Result<ExitCode, Error> {
    match &arguments.command {
        Command::Doctor {
            programs, output, ..
        } if !programs.is_empty() => return redirect::examine(programs, *output),
        Command::Run(run) => return run_program(run),
        Command::Pool { command } => return pool::command(command),
        Command::Rebalance(options) => pool::rebalance(options)?,
        Command::Doctor {
            side, pool, output, ..
        } => {
            return doctor::run(*side, *pool, arguments.control.as_deref(), *output);
        }
        Command::List { job, output } => sessions::list(&arguments.connect()?, *job, *output)?,
        Command::Top(options) if options.pool => top::pool(options)?,
        Command::Top(options) => top::top(&arguments.connect()?, options)?,
        Command::End { session, output } => {
            sessions::end(&arguments.connect()?, *session, *output)?;
        }
        Command::Share(share) => sessions::share(&arguments.connect()?, share)?,
        Command::Migrate(migrate) => return moving::migrate(&arguments.connect()?, migrate),
        Command::Certificate(order) => certificate::make(order)?,
        Command::Checkpoint(order) => moving::checkpoint(&arguments.connect()?, order)?,
        Command::Restore(order) => moving::restore(&arguments.connect()?, order)?,
        Command::Attach(options) => attach(options)?,
        Command::Detach(options) => libvirt::detach(options)?,
        Command::Depart(options) => travel::depart(arguments, options)?,
        Command::Arrive(options) => travel::arrive(arguments, options)?,
        Command::LibvirtHook {
            domain, operation, ..
        } => libvirt::hook(domain, operation)?,
        Command::Status { output } => sessions::status(&arguments.connect()?, *output)?,
        Command::Config { command } => return config::run(command),
        Command::Completions { shell } => completions::write(*shell)?,
        Command::Man { directory } => man::write(directory)?,
    }
    Ok(ExitCode::SUCCESS)
}

/// Runs a program, with a lease if one is requested or if a job has one.
fn run_program(run: &Run) -> Result<ExitCode, Error> {
    let libraries = run.libraries.as_deref();
    match run.lease.pool.or_else(pool::around) {
        Some(engine) => pool::run(engine, &run.lease, libraries, &run.program, &run.arguments),
        None => Err(redirect::run(libraries, &run.program, &run.arguments)),
    }
}

/// Attaches a domain to this host's GPUs, or to one of the pool.
fn attach(options: &Attach) -> Result<(), Error> {
    let Attach { domain, scope, .. } = options;
    let (vm, socket) = (options.vm.as_ref(), options.socket.as_deref());
    if let Some(engine) = options.lease.pool {
        if scope.live || scope.config {
            let advice = "--pool is for the running domain: leave out --live and --config";
            return Err(Error::Refused(advice.into()));
        }
        let connect = scope.connect.as_deref();
        let entry = (options.vsock_socket.as_deref(), options.vsock_port);
        pool::attach(engine, &options.lease, domain, connect, entry)
    } else if options.print_xml {
        libvirt::print_element(domain, vm, socket, options.output)
    } else {
        libvirt::attach(domain, scope, vm, socket, options.output)
    }
}
