//! `paragpu`: shows and controls virtual GPUs, on a host and in a guest.
#![forbid(unsafe_code)]

mod arguments;
mod certificate;
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

use std::process::ExitCode;

use clap::{CommandFactory as _, Parser as _};

use crate::arguments::{Arguments, Command};
use crate::error::Error;

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    match run(&arguments) {
        Ok(code) => code,
        // The reader of the output has closed it.
        Err(Error::Output(error)) if error.kind() == std::io::ErrorKind::BrokenPipe => {
            ExitCode::SUCCESS
        }
        Err(error) => {
            eprintln!("paragpu: {}", error::plain(&error::chain(&error)));
            ExitCode::FAILURE
        }
    }
}

fn run(arguments: &Arguments) -> Result<ExitCode, Error> {
    match &arguments.command {
        Command::Doctor {
            programs, output, ..
        } if !programs.is_empty() => return redirect::examine(programs, *output),
        Command::Run {
            libraries,
            lease,
            program,
            arguments,
        } => {
            let libraries = libraries.as_deref();
            return match lease.pool.or_else(pool::around) {
                Some(engine) => pool::run(engine, lease, libraries, program, arguments),
                None => Err(redirect::run(libraries, program, arguments)),
            };
        }
        Command::Pool { command } => return pool::command(command),
        Command::Rebalance(options) => pool::rebalance(options)?,
        Command::Doctor {
            side, pool, output, ..
        } => {
            return doctor::run(*side, *pool, arguments.control.as_deref(), *output);
        }
        Command::List { output } => sessions::list(&arguments.connect()?, *output)?,
        Command::Top {
            pool,
            once,
            interval,
            sort,
            output,
        } => {
            let options = top::Options {
                interval: *interval,
                once: *once,
                sort: *sort,
                output: *output,
            };
            match pool {
                true => top::pool(options)?,
                false => top::top(&arguments.connect()?, options)?,
            }
        }
        Command::End { session } => sessions::end(&arguments.connect()?, *session)?,
        Command::Share(share) => sessions::share(&arguments.connect()?, share)?,
        Command::Migrate(migrate) => return moving::migrate(&arguments.connect()?, migrate),
        Command::Certificate(order) => certificate::make(order)?,
        Command::Checkpoint {
            session,
            directory,
            end,
            every,
            output,
        } => moving::checkpoint(
            &arguments.connect()?,
            *session,
            directory,
            *end,
            *every,
            *output,
        )?,
        Command::Restore {
            directory,
            copies,
            output,
        } => {
            moving::restore(&arguments.connect()?, directory, *copies, *output)?;
        }
        Command::Attach {
            domain,
            scope,
            vm,
            socket,
            print_xml,
            lease,
            vsock_port,
            vsock_socket,
            output,
        } => {
            let (vm, socket) = (vm.as_ref(), socket.as_deref());
            if let Some(engine) = lease.pool {
                if scope.live || scope.config {
                    let advice = "--pool is for the running domain: leave out --live and --config";
                    return Err(Error::Refused(advice.into()));
                }
                let connect = scope.connect.as_deref();
                let entry = (vsock_socket.as_deref(), *vsock_port);
                pool::attach(engine, lease, domain, connect, entry)?;
            } else if *print_xml {
                libvirt::print_element(domain, vm, socket, *output)?;
            } else {
                libvirt::attach(domain, scope, vm, socket, *output)?;
            }
        }
        Command::Detach {
            domain,
            scope,
            timeout,
            output,
        } => libvirt::detach(domain, scope, *timeout, *output)?,
        Command::Depart {
            domain,
            to,
            connect,
            timeout,
            output,
        } => travel::depart(arguments, domain, to, connect.as_deref(), *timeout, *output)?,
        Command::Arrive {
            domain,
            connect,
            timeout,
            output,
        } => travel::arrive(arguments, domain, connect.as_deref(), *timeout, *output)?,
        Command::LibvirtHook {
            domain, operation, ..
        } => libvirt::hook(domain, operation)?,
        Command::Status { output } => sessions::status(&arguments.connect()?, *output)?,
        Command::Config { command } => return config::run(command),
        Command::Completions { shell } => {
            let mut script = Vec::new();
            clap_complete::generate(*shell, &mut Arguments::command(), "paragpu", &mut script);
            error::print(&script)?;
        }
        Command::Man { directory } => man::write(directory)?,
    }
    Ok(ExitCode::SUCCESS)
}
