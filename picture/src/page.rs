//! The frame of a page: one file without network, light and dark, for a phone and for paper.

use maud::{DOCTYPE, Markup, PreEscaped, html};

/// The style of the frame, the picture and of tables.
pub const STYLE: &str = include_str!("style.css");
/// The page loads nothing.
const POLICY: &str = "default-src 'none'; style-src 'unsafe-inline'; img-src data:";

/// A script that a page may run.
#[derive(Clone, Copy, Debug)]
pub struct Script {
    /// The script.
    pub text: &'static str,
    /// Its hash as in a Content Security Policy: `sha256-` and base64.
    pub hash: &'static str,
}

/// Returns a page of this title and body, with `style` after [`STYLE`]. It runs no script except
/// `script`.
pub fn page(title: &str, style: &str, script: Option<Script>, body: &Markup) -> Markup {
    let policy = match script {
        Some(script) => format!("{POLICY}; script-src '{}'", script.hash),
        None => POLICY.to_owned(),
    };
    html! {
        (DOCTYPE)
        html lang="en" {
            head {
                meta charset="utf-8";
                meta name="viewport" content="width=device-width, initial-scale=1";
                meta name="color-scheme" content="light dark";
                meta http-equiv="Content-Security-Policy" content=(policy);
                link rel="icon" href="data:,";
                title { (title) }
                style { (PreEscaped(STYLE)) (PreEscaped(style)) }
            }
            body {
                (body)
                @if let Some(script) = script { script { (PreEscaped(script.text)) } }
            }
        }
    }
}
