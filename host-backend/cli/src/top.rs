//! `paragpu top`: the current activity of sessions.

mod listing;
mod pool;
mod screen;
mod view;

use std::io::IsTerminal as _;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use ratatui::crossterm::event::{poll, read};
use ratatui::crossterm::execute;
use ratatui::crossterm::terminal::{EnterAlternateScreen, size};
use ratatui::layout::Rect;
use ratatui::{DefaultTerminal, TerminalOptions, Viewport};
use rustix::event::{PollFd, PollFlags, Timespec};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::flag;

use crate::arguments::{Output, Top};
use crate::control::Control;
use crate::error::{Error, print, print_json_line};
pub use pool::top as pool;
use screen::Key;
use view::{sample, view};

/// Maximum time until a signal ends the view: signals do not interrupt the wait for keys.
const SIGNALS: Duration = Duration::from_millis(100);

/// `paragpu top`.
pub fn top(control: &Control, options: &Top) -> Result<(), Error> {
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
            Output::Json => print_json_line(&view)?,
            Output::Text => print(view.text() + if options.once { "" } else { "\n" })?,
        }
        if options.once {
            return Ok(());
        }
        before = now;
    }
}

/// The terminal, on a screen of its own.
fn terminal() -> std::io::Result<DefaultTerminal> {
    if let Ok((1.., 1..)) = size() {
        return ratatui::try_init();
    }
    // A terminal of unknown size is assumed to be 80 by 24.
    execute!(std::io::stdout(), EnterAlternateScreen)?;
    ratatui::try_init_with_options(TerminalOptions {
        viewport: Viewport::Fixed(Rect::new(0, 0, 80, 24)),
    })
}

/// Restores the terminal when dropped.
struct Screen;

impl Drop for Screen {
    fn drop(&mut self) {
        ratatui::restore();
    }
}

/// Whether the terminal is gone. Waiting for its keys would then busy-loop.
fn hung_up() -> bool {
    let input = std::io::stdin();
    let mut fds = [PollFd::new(&input, PollFlags::empty())];
    let now = Timespec::default();
    rustix::event::poll(&mut fds, Some(&now)).is_ok_and(|ready| ready > 0)
}

/// The live view.
fn show(control: &Control, options: &Top) -> Result<(), Error> {
    let mut sort = options.sort;
    let mut before = sample(control)?;
    let mut now = sample(control)?;
    // A signal's default would end the process without restoring the terminal.
    let ended = Arc::new(AtomicBool::new(false));
    for signal in [SIGTERM, SIGHUP, SIGINT] {
        flag::register(signal, Arc::clone(&ended)).map_err(Error::Output)?;
    }
    let mut terminal = terminal().map_err(Error::Output)?;
    let _screen = Screen;
    let mut next = Instant::now() + options.interval;
    loop {
        let view = view(&before, &now, sort);
        terminal
            .draw(|frame| screen::draw(frame, &now.stats, &view, sort))
            .map_err(Error::Output)?;
        let pressed = loop {
            if hung_up() || ended.load(Ordering::Relaxed) {
                return Ok(());
            }
            let left = next.saturating_duration_since(Instant::now());
            let pressed = poll(left.min(SIGNALS)).map_err(Error::Output)?;
            if pressed || left.is_zero() {
                break pressed;
            }
        };
        if pressed {
            match screen::key(&read().map_err(Error::Output)?) {
                Key::Quit => return Ok(()),
                Key::Sort(by) => sort = by,
                // A resized terminal is redrawn.
                Key::Other => {}
            }
            continue;
        }
        next = Instant::now() + options.interval;
        before = std::mem::replace(&mut now, sample(control)?);
    }
}
