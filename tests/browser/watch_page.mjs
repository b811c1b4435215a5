// Watches a page that reloads itself; prints one JSON line whenever its status text changes, until it no longer reloads.
//   node watch_page.mjs CHROMIUM PAGE SECONDS
import { pathToFileURL } from "node:url";
import { chromium } from "playwright-core";

const [, , executablePath, file, seconds] = process.argv;
const browser = await chromium.launch({ executablePath, args: ["--no-sandbox"] });
const page = await browser.newPage();
const errors = [];
page.on("console", (message) => message.type() === "error" && errors.push(message.text()));
page.on("pageerror", (error) => errors.push(String(error)));
let loads = 0;
page.on("load", () => { loads += 1; });
await page.goto(pathToFileURL(file).href);
const end = Date.now() + 1000 * Number(seconds);
let last = "";
while (Date.now() < end) {
  let now;
  try {
    now = await page.evaluate(() => ({
      reloads: Boolean(document.querySelector('meta[http-equiv="refresh"]')),
      status: document.querySelector("#status")?.innerText ?? "",
      bars: [...document.querySelectorAll("progress")].map((bar) => bar.value),
      curves: document.querySelectorAll("#training svg").length,
      rows: document.querySelectorAll("#result tbody tr").length,
    }));
  } catch {
    await new Promise((done) => setTimeout(done, 50)); // the page is just being reloaded
    continue;
  }
  const text = JSON.stringify(now);
  if (text !== last) console.log(JSON.stringify({ ...now, loads, errors }));
  last = text;
  if (!now.reloads) break;
  await new Promise((done) => setTimeout(done, 150));
}
await browser.close();
