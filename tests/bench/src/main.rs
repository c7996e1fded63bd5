//! Baselines of the benchmarks, and what they measure below the CUDA
//! interface. One JSON line each: `{"name":…,"unit":…,"value":…}`, the value
//! being a median.
#![forbid(unsafe_code)]

mod arithmetic;
mod copies;
mod cpu;
mod enqueue;
mod error;
mod pingpong;
mod sample;
mod session;

use std::process::ExitCode;

use clap::{Parser, Subcommand, ValueEnum as _};
use paragpu_protocol::chain;

use crate::error::Error;
use crate::sample::print;

/// Measures what remoting is compared with, and single calls of a session.
#[derive(Debug, Parser)]
#[command(name = "paragpu-bench", version)]
struct Arguments {
    #[command(subcommand)]
    what: Benchmark,
}

#[derive(Debug, Subcommand)]
enum Benchmark {
    /// What the machine does without paragpu.
    Raw {
        /// Bytes of each bulk copy.
        #[arg(long, default_value_t = 64 << 20)]
        bulk: usize,
        /// Measure these; all, if none is named.
        names: Vec<Raw>,
    },
    /// A test program on one core, from making its inputs to its results.
    Cpu {
        /// Which.
        program: cpu::Program,
        /// Its --size.
        size: usize,
    },
    /// Round trips in a session, alternating with bare ones on the same kind
    /// of channel. The guest's configuration says which session: PARAGPU_*.
    Calls,
    /// Null launches in a session, below the CUDA interface.
    Launches,
}

/// One baseline.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum Raw {
    /// Round trip through two cache lines between two polling threads.
    PingpongShm,
    /// Round trip over a unix socket between two blocking threads.
    PingpongUnix,
    /// Round trip over loopback TCP between two blocking threads.
    PingpongTcp,
    /// As pingpong-unix, both ends polling as the communicators do.
    PingpongUnixPolled,
    /// As pingpong-tcp, both ends polling as the communicators do.
    PingpongTcpPolled,
    /// memcpy by one thread, all pages present.
    Memcpy,
    /// Bulk bytes over a unix socket between two threads.
    CopyUnix,
    /// Bulk bytes over loopback TCP between two threads.
    CopyTcp,
    /// The same under TLS.
    CopyTls,
    /// A launch's bytes into a ring that another thread empties.
    Enqueue,
    /// Multiply-adds of 32 lanes by one thread.
    Arithmetic,
}

fn raw(name: Raw, bulk: usize) -> Result<(), Error> {
    use pingpong::{Socket, WaitMode};
    const MICROS: f64 = 1e6;
    let label = name
        .to_possible_value()
        .map(|value| format!("raw_{}", value.get_name().replace('-', "_")))
        .unwrap_or_default();
    let trip = |socket, manner| {
        pingpong::socket(socket, manner, pingpong::BATCHES).map(|value| value * MICROS)
    };
    let (unit, value) = match name {
        Raw::PingpongShm => ("us", pingpong::shared_memory(pingpong::BATCHES) * MICROS),
        Raw::PingpongUnix => ("us", trip(Socket::Unix, WaitMode::Blocking)?),
        Raw::PingpongTcp => ("us", trip(Socket::Tcp, WaitMode::Blocking)?),
        Raw::PingpongUnixPolled => ("us", trip(Socket::Unix, WaitMode::Polling)?),
        Raw::PingpongTcpPolled => ("us", trip(Socket::Tcp, WaitMode::Polling)?),
        Raw::Memcpy => ("B/s", copies::memcpy(bulk)),
        Raw::CopyUnix => ("B/s", copies::socket(Socket::Unix, bulk)?),
        Raw::CopyTcp => ("B/s", copies::socket(Socket::Tcp, bulk)?),
        Raw::CopyTls => ("B/s", copies::tls(bulk)?),
        Raw::Enqueue => ("us", enqueue::cost() * MICROS),
        Raw::Arithmetic => ("1/s", arithmetic::rate()),
    };
    print(&label, unit, value);
    Ok(())
}

fn run(arguments: Arguments) -> Result<(), Error> {
    match arguments.what {
        Benchmark::Raw { bulk, names } => {
            let names = if names.is_empty() {
                Raw::value_variants().to_vec()
            } else {
                names
            };
            names.into_iter().try_for_each(|name| raw(name, bulk))
        }
        Benchmark::Cpu { program, size } => {
            print("cpu", "s", cpu::seconds(program, size));
            Ok(())
        }
        Benchmark::Calls => session::calls(),
        Benchmark::Launches => session::launches(),
    }
}

fn main() -> ExitCode {
    match run(Arguments::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("paragpu-bench: {}", chain(&error));
            ExitCode::FAILURE
        }
    }
}
