/** URLs that the browser itself requests: pictures and downloads. */

/** Whether this document shows a share link. Its files are those that the link shows; they have no thumbnails. */
export const isShared: boolean = globalThis.location?.pathname === "/share";

const sharedFile = (id: string) => `/v1/shared/file?file_id=${id}`;

export const fileThumbnail = (id: string) => (isShared ? sharedFile(id) : `/v1/files/${id}/thumbnail`);
export const fileContent = (id: string) => (isShared ? sharedFile(id) : `/v1/files/${id}/content`);
