// Elements, made and changed without markup: whatever a peer has sent is text, never HTML.

import { clean } from "./format.js";

export const byId = (id) => document.getElementById(id);

export function element(name, text = "", className = "") {
  const made = document.createElement(name);
  if (text !== "") made.textContent = clean(text);
  if (className) made.className = className;
  return made;
}

// An unchanged text is left alone: to write it again would cost a layout, and have a screen reader say it again.
export function setText(node, text) {
  const wanted = clean(text);
  if (node.textContent !== wanted) node.textContent = wanted;
}

export function setClass(node, className) {
  if (node.className !== className) node.className = className;
}

// Make a table's body have these rows of texts, the first of each as its header.
export function fillTable(table, names, rows) {
  if (!table.tHead) {
    const head = table.createTHead().insertRow();
    for (const name of names) {
      const cell = element("th", name);
      cell.scope = "col";
      head.append(cell);
    }
    table.append(element("tbody"));
  }
  const body = table.tBodies[0];
  while (body.rows.length > rows.length) body.deleteRow(-1);
  rows.forEach((row, number) => {
    const line = body.rows[number] ?? body.insertRow();
    row.forEach((text, column) => {
      let cell = line.cells[column];
      if (!cell) {
        cell = element(column ? "td" : "th");
        if (!column) cell.scope = "row";
        line.append(cell);
      }
      setText(cell, text);
    });
  });
}

// A canvas draws in the pixels of the screen, or its lines blur. More than two a CSS pixel cost time and show nothing.
export function fit(canvas) {
  const scale = Math.min(2, window.devicePixelRatio || 1);
  const width = canvas.clientWidth;
  const height = canvas.clientHeight;
  if (canvas.width !== Math.round(width * scale) || canvas.height !== Math.round(height * scale)) {
    canvas.width = Math.round(width * scale);
    canvas.height = Math.round(height * scale);
  }
  const context = canvas.getContext("2d");
  context.setTransform(scale, 0, 0, scale, 0, 0);
  context.clearRect(0, 0, width, height);
  return context;
}
