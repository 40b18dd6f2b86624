// Every address that a browser could follow or load from a page, found by a real HTML parser.
import { parseFragment } from "parse5";

const BASES = ["https://base.example/dir/page", "http://other-base.example/"];
const ONE = new Set([
  "action", "background", "cite", "classid", "code", "codebase", "data", "dynsrc", "formaction",
  "href", "icon", "longdesc", "lowsrc", "manifest", "poster", "profile", "src", "usemap",
]);
const SPACED = new Set(["archive", "attributionsrc", "ping"]);
const CANDIDATES = new Set(["srcset", "imagesrcset"]);
const ANIMATED = new Set(["by", "from", "to", "values"]);
const IN_CSS = /url\(\s*(?:"([^"]*)"|'([^']*)'|([^)]*))\s*\)?|@import\s+(?:"([^"]*)"|'([^']*)')/gi;

const resolved = (value) => {
  const all = BASES.map((base) => (URL.canParse(value, base) ? new URL(value, base).href : null));
  return all.includes(null) ? [null] : all;
};

// CSS escapes such as \75rl( and comments between the letters are read as a browser reads them.
const inCss = (css) => {
  const plain = css
    .replace(/\/\*[^]*?(?:\*\/|$)/g, "")
    .replace(/\\(?:([0-9a-f]{1,6})\s?|([^\n]))/gi, (_, code, letter) =>
      code ? String.fromCodePoint(Math.min(parseInt(code, 16), 0x10ffff)) : letter,
    );
  return [...plain.matchAll(IN_CSS)].map((match) => match.slice(1).find((part) => part !== undefined));
};

const inAttribute = (element, name, value) => {
  if (ONE.has(name)) return [value];
  if (SPACED.has(name)) return value.split(/[\s,]+/).filter(Boolean);
  if (CANDIDATES.has(name)) {
    return value.split(/,\s|,$|\s,/).map((part) => part.trim().split(/\s+/)[0].replace(/^,+/, "")).filter(Boolean);
  }
  if (name === "content" && element.attrs.some((other) => /^refresh$/i.test(other.value.trim()))) {
    const match = /[;,\s]\s*(?:url\s*=\s*)?["']?\s*([^"'\s;,][^"']*)/i.exec(value);
    return match ? [match[1]] : [];
  }
  if (ANIMATED.has(name) && element.attrs.some((other) => /href$/i.test(other.value))) return value.split(";");
  return /url\(|@import|\\/i.test(value) ? inCss(value) : [];
};

function* ofElement(element) {
  for (const { name: plain, prefix, value } of element.attrs) {
    const name = prefix ? `${prefix}:${plain}` : plain;
    const local = name.replace(/^.*:/, "");
    if (local.startsWith("on")) yield [name, value, [null]];
    else if (local === "srcdoc") yield* inHtml(value);
    else for (const address of inAttribute(element, local, value)) yield [name, address, resolved(address)];
  }
  if (element.tagName !== "style" && element.tagName !== "script") return;
  const text = element.childNodes.map((child) => child.value ?? "").join("");
  if (element.tagName === "script") yield ["<script>", text, [null]];
  else for (const address of inCss(text)) yield ["<style>", address, resolved(address)];
}

function* inTree(root) {
  const waiting = [root];
  while (waiting.length) {
    const node = waiting.pop();
    if (node.attrs) yield* ofElement(node);
    if (node.content) waiting.push(node.content);
    if (node.childNodes) waiting.push(...node.childNodes);
  }
}

/** [attribute, raw value, [resolved against each base]] of each; places in the page are left out. */
export function* inHtml(html) {
  // What <noscript> holds is text where scripts run, and elements where they do not.
  for (const scriptingEnabled of /<noscript/i.test(html) ? [false, true] : [true]) {
    for (const found of inTree(parseFragment(html, { scriptingEnabled }))) {
      if (!found[1].startsWith("#") || found[2][0] === null) yield found;
    }
  }
}
