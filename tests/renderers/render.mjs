// Reads one report per line from stdin: {id, markdown}. Writes the links that each renderer produces,
// one line per report, to stdout:
// {id, found: [[renderer, attribute, raw value, [resolved against each base]], ...]}.
import { createInterface } from "node:readline";
import markdownIt from "markdown-it";
import markdownIt14 from "markdown-it-14";
import footnote from "markdown-it-footnote";
import { Marked } from "marked";
import rehypeRaw from "rehype-raw";
import rehypeStringify from "rehype-stringify";
import remarkGfm from "remark-gfm";
import remarkParse from "remark-parse";
import remarkRehype from "remark-rehype";
import { unified } from "unified";
import { inHtml } from "./addresses.mjs";

const marked = new Marked({ gfm: true });
const markdownItOptions = { html: true, linkify: true };
const markdownItLatest = markdownIt(markdownItOptions).use(footnote);
markdownItLatest.linkify.set({ fuzzyLink: true }); // `www.a.com` and `a.com`: the default up to version 14
const markdownItV14 = markdownIt14(markdownItOptions).use(footnote);
const remark = unified().use(remarkParse).use(remarkGfm).freeze();
const withHtml = unified()
  .use(remarkRehype, { allowDangerousHtml: true })
  .use(rehypeRaw)
  .use(rehypeStringify)
  .freeze();
const withoutHtml = unified().use(remarkRehype).use(rehypeStringify).freeze();

// Both remark renderers share one tree: parsing is the most expensive step, and neither modifies it.
let tree;
const renderers = {
  marked: (markdown) => marked.parse(markdown),
  "markdown-it": (markdown) => markdownItLatest.render(markdown),
  "markdown-it 14": (markdown) => markdownItV14.render(markdown),
  remark: (markdown) => withHtml.stringify(withHtml.runSync((tree = remark.parse(markdown)))),
  "remark without HTML": () => withoutHtml.stringify(withoutHtml.runSync(tree)),
};

for await (const line of createInterface({ input: process.stdin })) {
  const { id, markdown } = JSON.parse(line);
  const links = [];
  for (const [renderer, render] of Object.entries(renderers)) {
    try {
      for (const address of inHtml(render(markdown))) links.push([renderer, ...address]);
    } catch (error) {
      links.push([renderer, "cannot render", String(error.message), [null]]);
    }
  }
  console.log(JSON.stringify({ id, found: links }));
}
