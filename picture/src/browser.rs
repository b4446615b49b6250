//! Pages in Chromium, for tests.

use std::fs;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, ensure};
use serde_json::Value;

/// Chromium's arguments in a container without a display and without a network.
const CHROMIUM: [&str; 10] = [
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--enable-logging=stderr",
    "--virtual-time-budget=2000",
];

/// Returns the page as rendered by Chromium, in a window of `width` pixels.
///
/// # Errors
///
/// Chromium is missing, or complains about the page.
pub fn rendered(page: &Path, width: u32) -> Result<String> {
    let profile = tempfile::tempdir()?;
    let output = Command::new("chromium")
        .args(CHROMIUM)
        .arg(format!("--user-data-dir={}", profile.path().display()))
        .arg(format!("--window-size={width},900"))
        .arg("--dump-dom")
        .arg(format!("file://{}", page.display()))
        .output()
        .context("chromium: run scripts/needs chromium")?;
    let said = String::from_utf8_lossy(&output.stderr);
    let complaints: Vec<&str> = said
        .lines()
        .filter(|line| line.contains("CONSOLE"))
        .collect();
    ensure!(complaints.is_empty(), "{complaints:?}");
    Ok(String::from_utf8(output.stdout)?)
}

/// Runs in a copy of the page. Puts a description of its visible parts into an attribute of the
/// body: parts of pictures that are cut off, elements that are beyond the screen, and LOOK.
const LOOK: &str = r##"<script>
const box = element => element.getBoundingClientRect();
const isSeen = element => box(element).width > 0 && box(element).height > 0;
const said = element => element.tagName + ": " + element.textContent.slice(0, 60);
const all = (selector, root = document) => [...root.querySelectorAll(selector)].filter(isSeen);
const isBeyond = (element, frame) => box(element).left < frame.left - 1 || box(element).right > frame.right + 1
    || box(element).top < frame.top - 1 || box(element).bottom > frame.bottom + 1;
const describe = () => {
    const cut = all("svg").flatMap(svg => all("*", svg).filter(part => isBeyond(part, box(svg))));
    const screen = { left: 0, right: innerWidth, top: -Infinity, bottom: Infinity };
    const wide = all("body *").filter(element => !element.closest("pre, .skip") && isBeyond(element, screen));
    const seen = { width: innerWidth, cut: cut.map(said), wide: wide.map(said), ...LOOK };
    parent.document.body.setAttribute("data-seen", JSON.stringify(seen));
};
addEventListener("load", () => { ACT; setTimeout(describe, 100); });
</script>"##;

/// Returns a description of the visible parts of a page in a window of `width` pixels, after `act`:
/// an object of JavaScript, `look`, which may use the functions of `LOOK`.
///
/// # Errors
///
/// As for [`rendered`], or the scripts do not run.
pub fn seen(page: &Path, width: u32, act: &str, look: &str) -> Result<Value> {
    let source = fs::read_to_string(page)?;
    // The page itself does not allow these scripts.
    let source = source.replace("http-equiv=\"Content-Security-Policy\"", "");
    let script = LOOK.replace("LOOK", look).replace("ACT", act);
    let source = source.replace("</body>", &format!("{script}</body>"));
    let source = source.replace('&', "&amp;").replace('"', "&quot;");
    let folder = tempfile::tempdir()?;
    let copy = folder.path().join("page.html");
    // No window of Chromium is as narrow as a phone.
    let frame = format!(
        "<!DOCTYPE html><body><iframe width={width} height=900 frameborder=0 srcdoc=\"{source}\"></iframe></body>"
    );
    fs::write(&copy, frame)?;
    let dom = rendered(&copy, width + 100)?;
    let (_, seen) = dom
        .rsplit_once(" data-seen=\"")
        .context("the script did not run")?;
    let (seen, _) = seen
        .split_once('"')
        .context("an attribute without an end")?;
    Ok(serde_json::from_str(
        &seen.replace("&quot;", "\"").replace("&amp;", "&"),
    )?)
}
