/** Colours for code. Loaded when the first code block is drawn. */
import bash from "highlight.js/lib/languages/bash";
import c from "highlight.js/lib/languages/c";
import cpp from "highlight.js/lib/languages/cpp";
import csharp from "highlight.js/lib/languages/csharp";
import css from "highlight.js/lib/languages/css";
import diff from "highlight.js/lib/languages/diff";
import dockerfile from "highlight.js/lib/languages/dockerfile";
import go from "highlight.js/lib/languages/go";
import ini from "highlight.js/lib/languages/ini";
import java from "highlight.js/lib/languages/java";
import javascript from "highlight.js/lib/languages/javascript";
import json from "highlight.js/lib/languages/json";
import kotlin from "highlight.js/lib/languages/kotlin";
import makefile from "highlight.js/lib/languages/makefile";
import markdown from "highlight.js/lib/languages/markdown";
import php from "highlight.js/lib/languages/php";
import python from "highlight.js/lib/languages/python";
import r from "highlight.js/lib/languages/r";
import ruby from "highlight.js/lib/languages/ruby";
import rust from "highlight.js/lib/languages/rust";
import sql from "highlight.js/lib/languages/sql";
import swift from "highlight.js/lib/languages/swift";
import typescript from "highlight.js/lib/languages/typescript";
import xml from "highlight.js/lib/languages/xml";
import yaml from "highlight.js/lib/languages/yaml";
import { createLowlight } from "lowlight";
import { Fragment, type ReactNode } from "react";

const lowlight = createLowlight({
  bash, c, cpp, csharp, css, diff, dockerfile, go, ini, java, javascript, json, kotlin, makefile, markdown, php, python, r,
  ruby, rust, sql, swift, typescript, xml, yaml,
});
lowlight.registerAlias({ bash: ["shell", "console", "zsh"], ini: ["toml"], typescript: ["tsx"], javascript: ["jsx"] });

type Node = ReturnType<typeof lowlight.highlight>["children"][number];

/** The code as coloured spans; null for a language that is not known. */
export function paint(text: string, language: string): ReactNode | null {
  const name = language.toLowerCase();
  if (!lowlight.registered(name)) return null;
  return draw(lowlight.highlight(name, text).children);
}

function draw(nodes: readonly Node[]): ReactNode {
  return nodes.map((node, at) => {
    if (node.type === "text") return <Fragment key={at}>{node.value}</Fragment>;
    if (node.type !== "element") return null;
    const names = node.properties["className"];
    return (
      <span key={at} className={Array.isArray(names) ? names.join(" ") : undefined}>
        {draw(node.children)}
      </span>
    );
  });
}
