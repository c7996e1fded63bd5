//! The live view: what is drawn, and what keys do.

use paragpu_control::admin::Stats;
use paragpu_control::terminal::counted;
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
        let head = Line::from(head(stats)).style(Style::new().reversed());
        frame.render_widget(
            Paragraph::new(vec![head, Line::from(keys(sort)).dim()]),
            *area,
        );
    }
    for (listing, area) in listings.iter().zip(areas) {
        frame.render_widget(table(listing, area.width), *area);
    }
    if view.sessions.is_empty() {
        let [_, area] =
            Layout::vertical([Constraint::Fill(1), Constraint::Length(1)]).areas(frame.area());
        frame.render_widget(Line::from("no sessions").dim(), area);
    }
}

/// The keys, on a line of their own, which fits into 80 columns.
fn keys(sort: Sort) -> String {
    format!("q: quit   sort by c: calls  b: bytes  m: memory  a: age   ({sort:?})")
}

fn head(stats: &Stats) -> String {
    format!(
        "paragpu: {} of at most {}, {} waiting, up {}",
        stats.sessions,
        counted(stats.session_limit, "session"),
        stats.waiting,
        age(stats.uptime)
    )
}

/// Blanks between two columns.
const GAP: u16 = 2;
/// Width to which a column of text may shrink before a column is omitted.
const TEXT: u16 = 12;

/// A column on the screen.
struct Shown {
    title: &'static str,
    side: Side,
    rank: u8,
    /// Its place among the cells of a row.
    place: usize,
    /// Width of its widest cell: names differ much.
    widest: u16,
    /// Its width on the screen.
    width: u16,
}

/// The columns that fit into `room`. Text shrinks, but numbers are shown in full or not at
/// all: they would lose their first digits.
fn columns(listing: &Listing, room: u16) -> Vec<Shown> {
    let mut shown: Vec<Shown> = (listing.columns.iter().enumerate())
        .map(|(place, (title, side, rank))| {
            let cells = listing.rows.iter().filter_map(|row| row.get(place));
            let widest = cells.map(|cell| Line::from(cell.as_str()).width()).max();
            let widest = widest.unwrap_or(0).max(title.len());
            let widest = u16::try_from(widest).unwrap_or(u16::MAX);
            Shown {
                title,
                side: *side,
                rank: *rank,
                place,
                widest,
                width: match side {
                    Side::Left => widest.min(TEXT),
                    Side::Right => widest,
                },
            }
        })
        .collect();
    let total = |shown: &[Shown]| {
        let widths = shown.iter().map(|column| column.width.saturating_add(GAP));
        let total = widths.fold(0_u16, u16::saturating_add);
        total.saturating_sub(GAP)
    };
    while total(&shown) > room
        && let Some(highest) = shown.iter().map(|column| column.rank).max()
    {
        shown.retain(|column| column.rank != highest);
    }
    let mut left = room.saturating_sub(total(&shown));
    for column in &mut shown {
        let more = left.min(column.widest.saturating_sub(column.width));
        column.width = column.width.saturating_add(more);
        left = left.saturating_sub(more);
    }
    shown
}

/// A text that is at most `width` wide; its omitted end is marked.
fn shortened(text: &str, width: u16) -> String {
    let width = usize::from(width);
    if Line::from(text).width() <= width {
        return text.to_owned();
    }
    let mut text: String = text.chars().take(width.saturating_sub(1)).collect();
    while Line::from(text.as_str()).width() >= width && text.pop().is_some() {}
    text + "…"
}

fn table(listing: &Listing, room: u16) -> Table<'static> {
    let shown = columns(listing, room);
    let cell = |text: &str, column: &Shown| {
        let text = Text::from(shortened(text, column.width));
        Cell::from(text.alignment(match column.side {
            Side::Left => Alignment::Left,
            Side::Right => Alignment::Right,
        }))
    };
    let titles = shown.iter().map(|column| cell(column.title, column));
    let rows = listing.rows.iter().map(|row| {
        let cells = shown.iter().map(|column| {
            let text = row.get(column.place).map_or("", String::as_str);
            cell(text, column)
        });
        Row::new(cells.collect::<Vec<_>>())
    });
    let rows: Vec<Row<'static>> = rows.collect();
    let widths = shown.iter().map(|column| Constraint::Length(column.width));
    Table::new(rows, widths)
        .header(Row::new(titles).bold())
        .column_spacing(GAP)
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

    fn row(session: u64) -> crate::top::view::Row {
        crate::top::view::Row {
            session,
            vm: "web-production-with-a-long-name-1".into(),
            guest_pid: 4_194_303,
            gpu: "software:0".into(),
            communicator: "vsock".into(),
            calls_per_second: 9_123_456.0,
            launches_per_second: 1234.0,
            bytes_to_device_per_second: (12_345_u64 << 20) as f64,
            bytes_from_device_per_second: (678 << 20) as f64,
            device_memory: 12 << 20,
            shadow_memory: 345 << 20,
            time: Some(0.75),
            share: None,
            age: 3.0 * 3600.0,
            counted: true,
        }
    }

    fn drawn(width: u16, height: u16, gpus: usize) -> Vec<String> {
        drawn_with(width, height, gpus, 0)
    }

    fn drawn_with(width: u16, height: u16, gpus: usize, sessions: u64) -> Vec<String> {
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
            sessions: (1..=sessions).map(row).collect(),
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
        let hints = drawn(80, 8, 2)[1].trim_end().to_owned();
        assert!(hints.starts_with("q: quit") && hints.ends_with("a: age   (Calls)"));
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
    fn numbers_are_shown_in_full_or_not_at_all() {
        // Each title with its cell, of which text may be shortened.
        let cells = [
            ("SESSION", "1"),
            ("PID", "4194303"),
            ("CALLS/S", "9123k"),
            ("LAUNCHES/S", "1234"),
            ("IN/S", "12.1GiB"),
            ("OUT/S", "678MiB"),
            ("MEMORY", "12MiB"),
            ("SHADOWS", "345MiB"),
            ("WEIGHT", "-"),
            ("TIME", "75%"),
            ("AGE", "3h00m"),
        ];
        let mut before = 0;
        for width in [60, 80, 100, 120, 200] {
            let lines = drawn_with(width, 12, 1, 1);
            let head = lines.iter().position(|line| line.contains("SESSION  "));
            let head = head.unwrap();
            let titles: Vec<&str> = lines[head].split_whitespace().collect();
            let row: Vec<&str> = lines[head + 1].split_whitespace().collect();
            assert_eq!(titles.len(), row.len(), "{width}: {lines:#?}");
            for (title, shown) in titles.iter().zip(&row) {
                match cells.iter().find(|(name, _)| name == title) {
                    Some((_, cell)) => assert_eq!(shown, cell, "{width}: {title}"),
                    None => assert!(["VM", "GPU", "VIA"].contains(title), "{title}"),
                }
            }
            for needed in ["SESSION", "VM", "MEMORY", "CALLS/S"] {
                assert!(titles.contains(&needed), "{width}: {needed}");
            }
            assert!(titles.len() >= before, "{width}");
            before = titles.len();
        }
        assert_eq!(before, 14);
    }

    #[test]
    fn long_names_are_shortened() {
        assert_eq!(shortened("web1", 4), "web1");
        assert_eq!(shortened("web-production", 6), "web-p…");
        assert_eq!(shortened("仮想機械", 4), "仮…");
        assert_eq!(shortened("web1", 0), "…");
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
