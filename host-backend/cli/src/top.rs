//! `paragpu top`: what the sessions do now.

use std::collections::BTreeMap;
use std::io::{IsTerminal as _, Write as _};
use std::time::{Duration, Instant};

use crossterm::event::{Event, KeyCode, KeyEventKind, KeyModifiers, poll, read};
use crossterm::style::{Attribute, Print, SetAttribute};
use crossterm::terminal::{
    Clear, ClearType, EnterAlternateScreen, LeaveAlternateScreen, disable_raw_mode,
    enable_raw_mode, size,
};
use crossterm::{cursor, queue};
use paragpu_control::admin::{Request, Response, SessionInfo, Stats};
use rustix::event::{PollFd, PollFlags, Timespec};
use serde::Serialize;

use crate::arguments::{Output, Sort};
use crate::control::{Control, unexpected};
use crate::error::{Error, print};
use crate::sessions::{age, bytes, lines, right, table};

/// What `paragpu top` is asked for.
#[derive(Debug, Clone, Copy)]
pub struct Options {
    /// From one look to the next.
    pub interval: Duration,
    /// One look only.
    pub once: bool,
    /// The first is the largest of this.
    pub sort: Sort,
    /// How to print.
    pub output: Output,
}

/// What the daemon said at one moment.
struct Sample {
    at: Instant,
    sessions: BTreeMap<u64, SessionInfo>,
    stats: Stats,
}

/// One look: what happened between two samples.
#[derive(Debug, Serialize)]
struct View {
    /// Seconds between the two.
    interval: f64,
    gpus: Vec<Gpu>,
    vms: Vec<Vm>,
    sessions: Vec<Row>,
}

#[derive(Debug, Serialize)]
struct Gpu {
    /// `cuda:0`.
    gpu: String,
    name: String,
    sessions: u64,
    /// Bytes of its memory.
    memory: u64,
    /// Bytes that sessions have of it.
    device_memory: u64,
    calls_per_second: f64,
    bytes_per_second: f64,
}

#[derive(Debug, Serialize)]
struct Vm {
    vm: String,
    sessions: u64,
    device_memory: u64,
    /// 0 for no limit.
    device_memory_limit: u64,
    calls_per_second: f64,
    bytes_per_second: f64,
}

#[derive(Debug, Serialize)]
struct Row {
    session: u64,
    vm: String,
    guest_pid: u32,
    gpu: String,
    communicator: String,
    calls_per_second: f64,
    launches_per_second: f64,
    bytes_to_device_per_second: f64,
    bytes_from_device_per_second: f64,
    device_memory: u64,
    /// Seconds since it began.
    age: f64,
    /// Whether its worker counted both times; the rates are zero if not.
    counted: bool,
}

impl Row {
    fn bytes_per_second(&self) -> f64 {
        self.bytes_to_device_per_second + self.bytes_from_device_per_second
    }
}

fn sample(control: &Control) -> Result<Sample, Error> {
    let Response::Stats(stats) = control.ask(&Request::Stats {})? else {
        return Err(unexpected());
    };
    let Response::Sessions { sessions } = control.ask(&Request::List {})? else {
        return Err(unexpected());
    };
    Ok(Sample {
        at: Instant::now(),
        sessions: sessions.into_iter().map(|one| (one.id, one)).collect(),
        stats,
    })
}

/// What happened from `before` to `now`.
fn view(before: &Sample, now: &Sample, sort: Sort) -> View {
    let seconds = now.at.duration_since(before.at).as_secs_f64();
    let mut rows: Vec<Row> = now
        .sessions
        .values()
        .map(|session| row(before.sessions.get(&session.id), session, seconds))
        .collect();
    let key = |row: &Row| match sort {
        Sort::Calls => row.calls_per_second,
        Sort::Bytes => row.bytes_per_second(),
        Sort::Memory => row.device_memory as f64,
        Sort::Age => row.age,
    };
    rows.sort_by(|a, b| key(b).total_cmp(&key(a)).then(a.session.cmp(&b.session)));
    let sums = |own: &dyn Fn(&Row) -> bool| {
        rows.iter()
            .filter(|row| own(row))
            .fold((0, 0.0, 0.0), |sum, row| {
                (
                    sum.0 + row.device_memory,
                    sum.1 + row.calls_per_second,
                    sum.2 + row.bytes_per_second(),
                )
            })
    };
    let gpus = now.stats.devices.iter().map(|device| {
        let (memory, calls, moved) = sums(&|row| row.gpu == device.device);
        Gpu {
            gpu: device.device.clone(),
            name: device.name.clone(),
            sessions: rows.iter().filter(|row| row.gpu == device.device).count() as u64,
            memory: device.memory,
            device_memory: memory,
            calls_per_second: calls,
            bytes_per_second: moved,
        }
    });
    let vms = now.stats.vms.iter().map(|vm| {
        let (_, calls, moved) = sums(&|row| row.vm == vm.vm);
        Vm {
            vm: vm.vm.clone(),
            sessions: vm.sessions,
            device_memory: vm.device_memory,
            device_memory_limit: vm.device_memory_limit,
            calls_per_second: calls,
            bytes_per_second: moved,
        }
    });
    View {
        interval: seconds,
        gpus: gpus.collect(),
        vms: vms.collect(),
        sessions: rows,
    }
}

fn row(before: Option<&SessionInfo>, now: &SessionInfo, seconds: f64) -> Row {
    // One that began meanwhile has all it did from then.
    let counted = now.counted && before.is_none_or(|before| before.counted);
    let seconds = match before {
        Some(_) => seconds,
        None => seconds.min(now.age),
    };
    let rate = |of: fn(&SessionInfo) -> u64| match counted && seconds > 0.0 {
        true => of(now).saturating_sub(before.map_or(0, of)) as f64 / seconds,
        false => 0.0,
    };
    Row {
        session: now.id,
        vm: now.vm.clone(),
        guest_pid: now.guest_pid,
        gpu: now.device.clone(),
        communicator: now.communicator.clone(),
        calls_per_second: rate(|one| one.calls),
        launches_per_second: rate(|one| one.launches),
        bytes_to_device_per_second: rate(|one| one.bytes_to_device),
        bytes_from_device_per_second: rate(|one| one.bytes_from_device),
        device_memory: now.device_memory,
        age: now.age,
        counted,
    }
}

/// A rate in few characters.
fn count(value: f64) -> String {
    match value {
        0.0..1e4 => format!("{value:.0}"),
        1e4..1e7 => format!("{:.0}k", value / 1e3),
        _ => format!("{:.0}M", value / 1e6),
    }
}

fn of(memory: u64, limit: u64) -> String {
    match limit {
        0 => bytes(memory),
        limit => format!("{} of {}", bytes(memory), bytes(limit)),
    }
}

fn text(view: &View) -> String {
    let mut gpus = table(&["GPU", "NAME", "SESSIONS", "MEMORY", "CALLS/S", "BYTES/S"]);
    (2..6).for_each(|column| right(&mut gpus, column));
    for gpu in &view.gpus {
        gpus.add_row([
            gpu.gpu.clone(),
            gpu.name.clone(),
            gpu.sessions.to_string(),
            of(gpu.device_memory, gpu.memory),
            count(gpu.calls_per_second),
            bytes(gpu.bytes_per_second as u64),
        ]);
    }
    let mut vms = table(&["VM", "SESSIONS", "MEMORY", "CALLS/S", "BYTES/S"]);
    (1..5).for_each(|column| right(&mut vms, column));
    for vm in &view.vms {
        vms.add_row([
            vm.vm.clone(),
            vm.sessions.to_string(),
            of(vm.device_memory, vm.device_memory_limit),
            count(vm.calls_per_second),
            bytes(vm.bytes_per_second as u64),
        ]);
    }
    let mut sessions = table(&[
        "SESSION",
        "VM",
        "PID",
        "GPU",
        "VIA",
        "CALLS/S",
        "LAUNCHES/S",
        "IN/S",
        "OUT/S",
        "MEMORY",
        "AGE",
    ]);
    for column in [0, 2, 5, 6, 7, 8, 9, 10] {
        right(&mut sessions, column);
    }
    for row in &view.sessions {
        let rate = |text: String| if row.counted { text } else { "-".into() };
        sessions.add_row([
            row.session.to_string(),
            row.vm.clone(),
            row.guest_pid.to_string(),
            row.gpu.clone(),
            row.communicator.clone(),
            rate(count(row.calls_per_second)),
            rate(count(row.launches_per_second)),
            rate(bytes(row.bytes_to_device_per_second as u64)),
            rate(bytes(row.bytes_from_device_per_second as u64)),
            rate(bytes(row.device_memory)),
            age(row.age),
        ]);
    }
    let mut text = lines(&gpus);
    if view.sessions.is_empty() {
        text += "\nno sessions\n";
    } else {
        text += &format!("\n{}\n{}", lines(&vms), lines(&sessions));
    }
    text
}

/// `paragpu top`.
pub fn top(control: &Control, options: Options) -> Result<(), Error> {
    let live = !options.once && options.output == Output::Text && std::io::stdout().is_terminal();
    if live {
        return show(control, options);
    }
    let mut before = sample(control)?;
    loop {
        std::thread::sleep(options.interval);
        let now = sample(control)?;
        let view = view(&before, &now, options.sort);
        match options.output {
            Output::Json => {
                // One line each, for whoever reads them as they come.
                let mut line =
                    serde_json::to_string(&view).map_err(|error| Error::Output(error.into()))?;
                line.push('\n');
                print(line)?;
            }
            Output::Text => print(text(&view) + if options.once { "" } else { "\n" })?,
        }
        if options.once {
            return Ok(());
        }
        before = now;
    }
}

/// Gives the terminal back as it was.
struct Screen;

impl Screen {
    fn new() -> std::io::Result<Self> {
        enable_raw_mode()?;
        let screen = Self;
        let mut out = std::io::stdout();
        queue!(out, EnterAlternateScreen, cursor::Hide)?;
        out.flush()?;
        Ok(screen)
    }

    /// Draws from the top left; what does not fit is left out.
    fn draw(&self, text: &str) -> std::io::Result<()> {
        // A terminal that does not say has what terminals had.
        let (width, height) = match size()? {
            (0, _) | (_, 0) => (80, 24),
            told => told,
        };
        let mut out = std::io::stdout().lock();
        queue!(out, cursor::MoveTo(0, 0))?;
        for (at, line) in (0..height).zip(text.lines()) {
            let line: String = line.chars().take(width.into()).collect();
            queue!(out, cursor::MoveTo(0, at))?;
            if line.starts_with("paragpu") {
                queue!(out, SetAttribute(Attribute::Reverse))?;
            }
            queue!(
                out,
                Print(line),
                SetAttribute(Attribute::Reset),
                Clear(ClearType::UntilNewLine)
            )?;
        }
        if text.lines().count() < usize::from(height) {
            queue!(out, Print("\r\n"), Clear(ClearType::FromCursorDown))?;
        }
        out.flush()
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        let mut out = std::io::stdout();
        // Nothing can be done about a terminal that is gone.
        let _ = queue!(out, LeaveAlternateScreen, cursor::Show);
        let _ = out.flush();
        let _ = disable_raw_mode();
    }
}

/// What a key does.
enum Key {
    Quit,
    Sort(Sort),
    Other,
}

fn key(event: &Event) -> Key {
    let Event::Key(key) = event else {
        return Key::Other;
    };
    if key.kind != KeyEventKind::Press {
        return Key::Other;
    }
    let control = key.modifiers.contains(KeyModifiers::CONTROL);
    match key.code {
        KeyCode::Char('c') if control => Key::Quit,
        KeyCode::Char('q') | KeyCode::Esc => Key::Quit,
        KeyCode::Char('c') => Key::Sort(Sort::Calls),
        KeyCode::Char('b') => Key::Sort(Sort::Bytes),
        KeyCode::Char('m') => Key::Sort(Sort::Memory),
        KeyCode::Char('a') => Key::Sort(Sort::Age),
        _ => Key::Other,
    }
}

/// Is the terminal gone? Waiting for its keys would then never sleep.
fn hung_up() -> bool {
    let input = std::io::stdin();
    let mut fds = [PollFd::new(&input, PollFlags::empty())];
    let now = Timespec::default();
    rustix::event::poll(&mut fds, Some(&now)).is_ok_and(|ready| ready > 0)
}

/// The live view.
fn show(control: &Control, mut options: Options) -> Result<(), Error> {
    let mut before = sample(control)?;
    let mut now = sample(control)?;
    let screen = Screen::new().map_err(Error::Output)?;
    let mut next = Instant::now() + options.interval;
    loop {
        let stats = &now.stats;
        let head = format!(
            "paragpu: {} of at most {} sessions, {} waiting, up {}   q: quit, sort by c: calls \
             b: bytes m: memory a: age\n\n",
            stats.sessions,
            stats.session_limit,
            stats.waiting,
            age(stats.uptime)
        );
        let shown = head + &text(&view(&before, &now, options.sort));
        screen.draw(&shown).map_err(Error::Output)?;
        if hung_up() {
            return Ok(());
        }
        let left = next.saturating_duration_since(Instant::now());
        if poll(left).map_err(Error::Output)? {
            match key(&read().map_err(Error::Output)?) {
                Key::Quit => return Ok(()),
                Key::Sort(sort) => options.sort = sort,
                // A terminal of another size is drawn anew.
                Key::Other => {}
            }
            continue;
        }
        next = Instant::now() + options.interval;
        before = std::mem::replace(&mut now, sample(control)?);
    }
}

#[cfg(test)]
mod tests {
    use paragpu_control::admin::Activity;

    use super::*;

    fn session(id: u64, calls: u64, age: f64) -> SessionInfo {
        SessionInfo {
            id,
            vm: "blue".into(),
            guest_pid: 1,
            worker_pid: 2,
            device: "cuda:0".into(),
            ordinal: 0,
            communicator: "pci".into(),
            age,
            calls,
            posted: 0,
            synchronous: calls,
            launches: 0,
            bytes_to_device: 0,
            bytes_from_device: 0,
            device_memory: 1 << 20,
            host_memory: 0,
            counted: true,
            ending: false,
            activity: Activity::Serving,
            checkpoint: None,
        }
    }

    #[test]
    fn rates_are_of_the_time_between() {
        let row_of = |before: Option<&SessionInfo>, now: &SessionInfo| row(before, now, 2.0);
        let before = session(1, 100, 10.0);
        assert_eq!(
            row_of(Some(&before), &session(1, 300, 12.0)).calls_per_second,
            100.0
        );
        // One that began half a second ago.
        assert_eq!(row_of(None, &session(2, 300, 0.5)).calls_per_second, 600.0);
        let uncounted = SessionInfo {
            counted: false,
            ..session(1, 0, 12.0)
        };
        let row = row_of(Some(&before), &uncounted);
        assert!(!row.counted);
        assert_eq!(row.calls_per_second, 0.0);
    }

    #[test]
    fn rates_are_short() {
        for (value, short) in [
            (0.0, "0"),
            (9999.4, "9999"),
            (12_345.0, "12k"),
            (2.5e7, "25M"),
        ] {
            assert_eq!(count(value), short);
        }
    }
}
