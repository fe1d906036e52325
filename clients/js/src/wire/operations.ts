/** The operations of the API by method and path, as types. They are made from the OpenAPI document. */
import type { Method, RequestOptions } from "../transport.js";
import type { paths } from "./schema.js";

type Operation<M extends Method, Path extends keyof paths> = paths[Path][Lowercase<M> & keyof paths[Path]];

/** The paths that have an operation with this method, with names in braces: `/v1/pages/{page_id}`. */
export type PathOf<M extends Method> = {
  [Path in keyof paths]: Operation<M, Path> extends { responses: unknown } ? Path : never;
}[keyof paths];

type Query<Op> = Op extends { parameters: { query?: infer Given } } ? ([NonNullable<Given>] extends [never] ? unknown : { query?: NonNullable<Given> }) : unknown;
type Params<Op> = Op extends { parameters: { path: infer Given extends object } } ? { params: Given } : unknown;
type Sent<Op> = Op extends { requestBody: { content: { "application/json": infer Body } } }
  ? { body: Body | Blob }
  : Op extends { requestBody?: { content: { "application/json": infer Body } } }
    ? { body?: Body | Blob }
    : { body?: unknown };

/** What a request to this operation needs: the names of its path, its query and its body. */
export type OperationOptions<M extends Method, Path extends keyof paths> = Omit<RequestOptions, "body"> &
  Query<Operation<M, Path>> &
  Params<Operation<M, Path>> &
  Sent<Operation<M, Path>>;

/** A tuple, so that options may be left out where nothing is needed. */
export type OperationArguments<M extends Method, Path extends keyof paths> =
  Record<never, never> extends OperationOptions<M, Path> ? [options?: OperationOptions<M, Path>] : [options: OperationOptions<M, Path>];

type Success = 200 | 201 | 202 | 204;
type Json<Response> = Response extends { content: { "application/json": infer Body } } ? Body : undefined;

/** What the operation answers with when all is well. */
export type AnswerOf<M extends Method, Path extends keyof paths> =
  Operation<M, Path> extends { responses: infer All } ? { [Status in keyof All & Success]: Json<All[Status]> }[keyof All & Success] : never;
