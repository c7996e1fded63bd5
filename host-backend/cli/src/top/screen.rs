//! The live view: what is drawn, and what keys do.

use paragpu_control::admin::Stats;
use ratatui::Frame;
use ratatui::crossterm::event::{Event, KeyCode, KeyEventKind, KeyModifiers};
use ratatui::layout::{Alignment, Constraint, Layout};
use ratatui::style::{Style, Stylize as _};
use ratatui::text::{Line, Text};
use ratatui::widgets::{Cell, Paragraph, Row, Table};

use super::listing::{Listing, Side};
use super::view::View;
use crate::arguments::Sort;
use crate::sessions::age;

/// The action of a key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Key {
    Quit,
    Sort(Sort),
    Other,
}

pub(super) fn key(event: &Event) -> Key {
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

/// Draws one look. The sessions take what is left of the screen.
pub(super) fn draw(frame: &mut Frame<'_>, stats: &Stats, view: &View, sort: Sort) {
    let listings = view.listings();
    let heights = listings.iter().map(|listing| {
        let rows = u16::try_from(listing.rows.len()).unwrap_or(u16::MAX);
        Constraint::Max(rows.saturating_add(2))
    });
    let areas = Layout::vertical([Constraint::Length(2)].into_iter().chain(heights));
    let areas = areas.split(frame.area());
    let mut areas = areas.iter();
    if let Some(area) = areas.next() {
        let head = Line::from(head(stats, sort)).style(Style::new().reversed());
        frame.render_widget(Paragraph::new(head), *area);
    }
    for (listing, area) in listings.iter().zip(areas) {
        frame.render_widget(table(listing), *area);
    }
    if view.sessions.is_empty() {
        let [_, area] =
            Layout::vertical([Constraint::Fill(1), Constraint::Length(1)]).areas(frame.area());
        frame.render_widget(Line::from("no sessions").dim(), area);
    }
}

fn head(stats: &Stats, sort: Sort) -> String {
    format!(
        "paragpu: {} of at most {} sessions, {} waiting, up {}   q: quit, sort by c: calls \
         b: bytes m: memory a: age ({sort:?})",
        stats.sessions,
        stats.session_limit,
        stats.waiting,
        age(stats.uptime)
    )
}

fn table(listing: &Listing) -> Table<'_> {
    let cell = |text: &str, side: Side| {
        Cell::from(Text::from(text.to_owned()).alignment(match side {
            Side::Left => Alignment::Left,
            Side::Right => Alignment::Right,
        }))
    };
    let sides = listing.columns.iter().map(|(_, side)| *side);
    let titles = listing
        .columns
        .iter()
        .map(|(title, side)| cell(title, *side));
    let rows = listing.rows.iter().map(|row| {
        let cells = row.iter().zip(sides.clone());
        Row::new(cells.map(|(text, side)| cell(text, side)))
    });
    // As wide as its widest cell: names differ much.
    let widths = listing
        .columns
        .iter()
        .enumerate()
        .map(|(place, (title, _))| {
            let cells = listing.rows.iter().filter_map(|row| row.get(place));
            let widest = cells.map(|cell| cell.chars().count()).max().unwrap_or(0);
            Constraint::Length(u16::try_from(widest.max(title.len())).unwrap_or(u16::MAX))
        });
    Table::new(rows, widths)
        .header(Row::new(titles).bold())
        .column_spacing(2)
}

#[cfg(test)]
mod tests {
    use ratatui::Terminal;
    use ratatui::backend::TestBackend;
    use ratatui::crossterm::event::KeyEvent;

    use super::*;
    use crate::top::view::Gpu;

    fn stats() -> Stats {
        Stats {
            sessions: 0,
            session_limit: 4,
            waiting: 1,
            pending: 0,
            begun: 0,
            refused: 0,
            crashed: 0,
            uptime: 61.0,
            ready: true,
            devices: Vec::new(),
            vms: Vec::new(),
            problem: None,
        }
    }

    fn drawn(width: u16, height: u16, gpus: usize) -> Vec<String> {
        let gpu = |number| Gpu {
            gpu: format!("cuda:{number}"),
            name: "a GPU".into(),
            sessions: 0,
            memory: 4 << 30,
            device_memory: 1 << 20,
            calls_per_second: 1234.0,
            bytes_per_second: 0.0,
        };
        let view = View {
            interval: 1.0,
            gpus: (0..gpus).map(gpu).collect(),
            vms: Vec::new(),
            sessions: Vec::new(),
        };
        let mut terminal = Terminal::new(TestBackend::new(width, height)).unwrap();
        terminal
            .draw(|frame| draw(frame, &stats(), &view, Sort::Calls))
            .unwrap();
        let buffer = terminal.backend().buffer();
        let row = |y| (0..width).map(move |x| buffer[(x, y)].symbol()).collect();
        (0..height).map(row).collect()
    }

    #[test]
    fn a_look_is_drawn() {
        let lines = drawn(100, 8, 2);
        assert!(lines[0].starts_with("paragpu: 0 of at most 4 sessions, 1 waiting, up 1m01s"));
        let words: Vec<&str> = lines[4].split_whitespace().collect();
        assert_eq!(
            words,
            [
                "cuda:1", "a", "GPU", "0", "1MiB", "of", "4GiB", "1234", "0B"
            ]
        );
        // Cells stand under the ends of their titles.
        assert_eq!(lines[2].find("CALLS/S").map(|at| at + 7), {
            lines[4].find("1234").map(|at| at + 4)
        });
        assert!(lines[7].starts_with("no sessions"));
    }

    #[test]
    fn any_size_of_screen_will_do() {
        for (width, height) in [(1, 1), (10, 2), (30, 3), (200, 4)] {
            assert_eq!(drawn(width, height, 50).len(), usize::from(height));
        }
    }

    #[test]
    fn keys_quit_and_sort() {
        let pressed = |code| key(&Event::Key(KeyEvent::new(code, KeyModifiers::NONE)));
        assert_eq!(pressed(KeyCode::Char('q')), Key::Quit);
        assert_eq!(pressed(KeyCode::Char('m')), Key::Sort(Sort::Memory));
        assert_eq!(pressed(KeyCode::Char('x')), Key::Other);
        let event = KeyEvent::new(KeyCode::Char('c'), KeyModifiers::CONTROL);
        assert_eq!(key(&Event::Key(event)), Key::Quit);
    }
}
