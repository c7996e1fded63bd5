//! `paragpud`, the daemon of a GPU host.
#![forbid(unsafe_code)]

use std::io::Write as _;
use std::process::ExitCode;

use clap::{CommandFactory as _, Parser as _};
use paragpu_config::host::Host;
use paragpu_daemon::arguments::Arguments;
use paragpu_daemon::broker::Broker;
use paragpu_daemon::{Error, logging, users};
use paragpu_protocol::chain;

fn main() -> ExitCode {
    if std::env::args_os()
        .nth(1)
        .is_some_and(|first| first == "--man")
    {
        return manual();
    }
    let arguments = Arguments::parse();
    match run(&arguments) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("paragpud: {}", chain(&error));
            ExitCode::FAILURE
        }
    }
}

/// Prints the manual page, for packages.
fn manual() -> ExitCode {
    let page = clap_mangen::Man::new(Arguments::command()).section("8");
    match page.render(&mut std::io::stdout()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(_) => ExitCode::FAILURE,
    }
}

fn run(arguments: &Arguments) -> Result<(), Error> {
    let host = arguments.sources().load::<Host>()?.values;
    // Before there is a thread, a connection or a secret.
    let users = users::begin(&host);
    let log = logging::start(host.log.level);
    let mut broker = Broker::new(host, log, arguments.clone(), users)?;
    if arguments.print_addresses {
        let mut output = std::io::stdout().lock();
        writeln!(output, "{}", broker.addresses()).map_err(Error::system("print the addresses"))?;
    }
    broker.run()
}
