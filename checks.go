// SPDX-License-Identifier: Apache-2.0

package snapshot

// check is one safety check of the engine. The build tag "weakened" makes a test binary in which one check an operation
// can be switched off, to show that the tests notice; in every other build none can.
type check uint8

const (
	_                check = iota
	checkType              // a name that is not a regular file is never opened
	checkPin               // the opened file is the one that was looked at
	checkGrowth            // at most size+1 bytes, and exactly size
	checkAfter             // the State after the bytes equals the one before them
	checkName              // the name still is the file that was read
	checkSettled           // a stamp younger than the clock's grain is not trusted
	checkEvidence          // lease or barriers after the first State
	checkListing           // a directory's State is equal before and after its listing
	checkDirIdentity       // an opened directory is the one that was recorded
	checkCollect           // every entry is looked at again after the join
	checkRoot              // the root's path still names the held root
	checkMount             // another mount's root is not entered
	checkSuspects          // an entry of which ctime moved is read again
	checkOthers            // and then every other entry is looked at again
	checkPublished         // what was published has the name
)
